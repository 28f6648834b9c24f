#include "parallel/comm/arguments.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <set>

#include "kernels/core/gpu.h"

namespace trireme {
namespace {

std::string place(const Communicator& comm) { return concat("group '", comm.name(), "', rank ", comm.rank(), " of ", comm.size()); }

}  // namespace

bool is_own_part(const Communicator& comm, const char* verb, const Tensor& part, const Tensor& whole) {
  TRIREME_CHECK(part.dtype() == whole.dtype(), verb, " mixes ", name_of(part.dtype()), " and ", name_of(whole.dtype()), " (", place(comm), ")");
  TRIREME_CHECK(whole.numel() == part.numel() * comm.size(), verb, " of ", part.numel(), " elements a rank and ", whole.numel(), " in all (",
                place(comm), ")");
  if (part.raw() == nullptr || whole.raw() == nullptr || part.numel() == 0) return false;
  const auto* begin = static_cast<const std::byte*>(whole.raw());
  const auto* at = static_cast<const std::byte*>(part.raw());
  if (at == begin + comm.rank() * part.bytes()) return true;
  // std::less gives a total order where < on pointers into different buffers does not.
  const bool apart = !std::less<>()(begin, at + part.bytes()) || !std::less<>()(at, begin + whole.bytes());
  TRIREME_CHECK(apart, verb, ": input and output overlap otherwise than in this rank's own part (", place(comm), ")");
  return false;
}

Tensor own_part(const Communicator& comm, const Tensor& whole) {
  const int64_t count = whole.numel() / comm.size();
  return whole.flat(comm.rank() * count, count);
}

void check_root(const Communicator& comm, int root) {
  TRIREME_CHECK(root >= 0 && root < comm.size(), "broadcast from rank ", root, " (", place(comm), ")");
}

void check_peers(const Communicator& comm, std::span<const PointToPoint> messages) {
  for (const PointToPoint& message : messages)
    TRIREME_CHECK(message.peer >= 0 && message.peer < comm.size(), "exchange with rank ", message.peer, " (", place(comm), ")");
}

int position_in_group(const Communicator& comm, const std::vector<int>& ranks, const std::string& name) {
  const std::set<int> distinct(ranks.begin(), ranks.end());
  TRIREME_CHECK(!ranks.empty() && distinct.size() == ranks.size() && *distinct.begin() >= 0 && *distinct.rbegin() < comm.size(), "group '", name,
                "' is not made of distinct ranks of ", place(comm));
  const auto own = std::find(ranks.begin(), ranks.end(), comm.rank());
  TRIREME_CHECK(own != ranks.end(), "group '", name, "' is created by a rank outside it: ", place(comm));
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
