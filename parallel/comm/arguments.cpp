#include "parallel/comm/arguments.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <set>

#include "kernels/core/gpu.h"

namespace trireme {
namespace {

std::string place(const Communicator& comm) { return concat("group '", comm.name(), "', rank ", comm.rank(), " of ", comm.size()); }

/// Meta and empty tensors are disjoint from everything.
bool are_disjoint(const Tensor& a, const Tensor& b) {
  if (a.raw() == nullptr || b.raw() == nullptr || a.numel() == 0 || b.numel() == 0) return true;
  const auto *first = static_cast<const std::byte*>(a.raw()), *second = static_cast<const std::byte*>(b.raw());
  // std::less gives a total order where < on pointers into different buffers does not.
  return !std::less<>()(second, first + a.bytes()) || !std::less<>()(first, second + b.bytes());
}

void check_pair(const Communicator& comm, const char* verb, const Tensor& in, const Tensor& out) {
  TRIREME_CHECK(in.dtype() == out.dtype(), verb, " mixes ", name_of(in.dtype()), " and ", name_of(out.dtype()), " (", place(comm), ")");
  TRIREME_CHECK(are_disjoint(in, out), verb, ": input and output overlap (", place(comm), ")");
}

void check_counts(const Communicator& comm, const char* what, const Tensor& whole, std::span<const int64_t> counts) {
  TRIREME_CHECK(std::ssize(counts) == comm.size(), "all_to_all_v with ", counts.size(), " ", what, " counts, expected one per rank (", place(comm),
                ")");
  TRIREME_CHECK(std::ranges::all_of(counts, [](int64_t count) { return count >= 0; }), "all_to_all_v with a negative ", what, " count (", place(comm),
                ")");
  TRIREME_CHECK(whole.shape().dims() == 1, "all_to_all_v of a tensor of shape ", whole.shape().str(), ", which is not 1-D (", place(comm), ")");
  const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
  TRIREME_CHECK(total == whole.numel(), "all_to_all_v: the ", what, " counts add up to ", total, ", but the tensor has ", whole.numel(),
                " elements (", place(comm), ")");
}

}  // namespace

bool is_own_part(const Communicator& comm, const char* verb, const Tensor& part, const Tensor& whole) {
  TRIREME_CHECK(part.dtype() == whole.dtype(), verb, " mixes ", name_of(part.dtype()), " and ", name_of(whole.dtype()), " (", place(comm), ")");
  TRIREME_CHECK(whole.numel() == part.numel() * comm.size(), verb, ": ", part.numel(), " elements per rank do not match ", whole.numel(),
                " in total (", place(comm), ")");
  if (part.raw() == nullptr || whole.raw() == nullptr || part.numel() == 0) return false;
  const auto* begin = static_cast<const std::byte*>(whole.raw());
  const auto* at = static_cast<const std::byte*>(part.raw());
  if (at == begin + comm.rank() * part.bytes()) return true;
  TRIREME_CHECK(are_disjoint(part, whole), verb, ": input and output overlap outside this rank's own part (", place(comm), ")");
  return false;
}

Tensor own_part(const Communicator& comm, const Tensor& whole) {
  const int64_t count = whole.numel() / comm.size();
  return whole.flat(comm.rank() * count, count);
}

int64_t check_all_to_all(const Communicator& comm, const Tensor& in, const Tensor& out) {
  check_pair(comm, "all_to_all", in, out);
  TRIREME_CHECK(in.numel() == out.numel() && in.numel() % comm.size() == 0, "all_to_all of ", in.numel(), " elements into ", out.numel(),
                ": must be equal and a multiple of the group size (", place(comm), ")");
  return in.numel() / comm.size();
}

void check_all_to_all_v(const Communicator& comm, const Tensor& in, std::span<const int64_t> send_counts, const Tensor& out,
                        std::span<const int64_t> receive_counts) {
  check_pair(comm, "all_to_all_v", in, out);
  check_counts(comm, "send", in, send_counts);
  check_counts(comm, "receive", out, receive_counts);
  const int own = comm.rank();
  const int64_t sent = send_counts[static_cast<size_t>(own)], expected = receive_counts[static_cast<size_t>(own)];
  TRIREME_CHECK(sent == expected, count_mismatch(own, sent, own, expected), " (", place(comm), ")");
}

std::string count_mismatch(int source, int64_t sent, int destination, int64_t expected) {
  return concat("all_to_all_v: rank ", source, " sends ", sent, " elements to rank ", destination, ", which expects ", expected);
}

std::vector<Tensor> split_parts(const Tensor& whole, std::span<const int64_t> counts) {
  std::vector<Tensor> parts;
  parts.reserve(counts.size());
  int64_t begin = 0;
  for (const int64_t count : counts) {
    parts.push_back(whole.flat(begin, count));
    begin += count;
  }
  return parts;
}

std::vector<PointToPoint> messages_of(const Communicator& comm, std::span<const Tensor> send, std::span<const Tensor> receive, bool with_own) {
  const int n = comm.size();
  std::vector<PointToPoint> messages;
  messages.reserve(2 * send.size());
  for (int distance = with_own ? 0 : 1; distance < n; ++distance) {
    const int source = (comm.rank() + n - distance) % n;
    messages.push_back({PointToPoint::Kind::kRecv, receive[static_cast<size_t>(source)], source});
  }
  for (int distance = with_own ? 0 : 1; distance < n; ++distance) {
    const int destination = (comm.rank() + distance) % n;
    messages.push_back({PointToPoint::Kind::kSend, send[static_cast<size_t>(destination)], destination});
  }
  return messages;
}

void check_root(const Communicator& comm, int root) {
  TRIREME_CHECK(root >= 0 && root < comm.size(), "broadcast: invalid root rank ", root, " (", place(comm), ")");
}

void check_peers(const Communicator& comm, std::span<const PointToPoint> messages) {
  for (const PointToPoint& message : messages) {
    TRIREME_CHECK(message.peer >= 0 && message.peer < comm.size(), "exchange: invalid peer rank ", message.peer, " (", place(comm), ")");
    TRIREME_CHECK(message.channel >= 0 && message.channel < kChannels, "exchange: invalid channel ", message.channel, " (", place(comm), ")");
  }
}

int position_in_group(const Communicator& comm, const std::vector<int>& ranks, const std::string& name) {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  TRIREME_CHECK(!ranks.empty() && distinct.size() == ranks.size() && *distinct.begin() >= 0 && *distinct.rbegin() < comm.size(), "group '", name,
                "' must consist of distinct ranks of ", place(comm));
  const auto own = std::find(ranks.begin(), ranks.end(), comm.rank());
  TRIREME_CHECK(own != ranks.end(), "group '", name, "' is created by a rank that is not a member: ", place(comm));
  return static_cast<int>(own - ranks.begin());
}

void copy_elements(const Tensor& from, const Tensor& to) {
  if (from.raw() == to.raw() || from.bytes() == 0) return;
  std::memcpy(to.raw(), from.raw(), static_cast<size_t>(from.bytes()));
}

void copy_elements(const Context& ctx, const Tensor& from, const Tensor& to) {
  if (ctx.device != Device::kCuda) return copy_elements(from, to);
  if (from.raw() != to.raw() && from.bytes() > 0) ctx.gpu->copy(from.raw(), to.raw(), from.bytes());
}

}  // namespace trireme
