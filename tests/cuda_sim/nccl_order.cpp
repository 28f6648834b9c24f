#include "tests/cuda_sim/nccl_order.h"

#include <algorithm>
#include <cstdio>

#include "kernels/core/check.h"

namespace cuda_sim::nccl {
namespace {

using trireme::concat;
using PartPointer = std::shared_ptr<Part>;

/// Parts that are issued and not retired, by device and in issue order.
std::map<int, std::deque<PartPointer>>& orders() {
  static auto& all = *new std::map<int, std::deque<PartPointer>>;  // never destroyed: operations may outlive main
  return all;
}

/// Calls `is` with each counterpart of a part, null for one not issued yet, until it returns false. Returns whether it was true of all.
template <class Is>
bool all_counterparts(const Part& part, const Is& is) {
  if (part.collective != nullptr)
    for (const PartPointer& other : part.collective->parts)
      if (other.get() != &part && !is(other)) return false;
  for (const MessageEnd& end : part.ends)
    if (end.message != nullptr && !is(end.send ? end.message->receiver : end.message->sender)) return false;
  return true;
}

/// A part can complete only after `next`, because `next` was issued before the part itself or before its counterpart `via`.
struct Dependency {
  PartPointer next, via;
};

bool can_retire(const Part& part) {
  if (part.phase != Part::Phase::kDone) return false;
  if (part.dropped || part.clique->error != ncclSuccess) return true;
  return all_counterparts(part,
                          [](const PartPointer& other) { return other == nullptr || other->retired || orders()[other->device()].front() == other; });
}

void retire_all() {
  for (bool again = true; again;) {
    again = false;
    for (auto& [device, order] : orders()) {
      for (; !order.empty() && can_retire(*order.front()); order.pop_front()) {
        Part& part = *order.front();
        part.retired = again = true;
        part.collective.reset();
        for (MessageEnd& end : part.ends) end.message.reset();
      }
    }
  }
}

/// Extends the path `way`, which ends at `from`, to one of the targets of this search. Returns false if there is none.
bool find_path(const Part& from, uint64_t search, std::vector<Dependency>& way) {
  const auto follow = [&](const Part& behind, const PartPointer& via) {
    const PartPointer next = behind.before.lock();
    if (next == nullptr || next->retired || next->seen == search) return false;
    next->seen = search;
    way.push_back({next, via});
    if (next->target == search || find_path(*next, search, way)) return true;
    way.pop_back();
    return false;
  };
  return follow(from, nullptr) ||
         !all_counterparts(from, [&](const PartPointer& other) { return other == nullptr || other->retired || !follow(*other, other); });
}

/// The part issued last on its device closes a cycle only if the part before it waits, directly or not, for one of its counterparts.
void break_if_cyclic(const PartPointer& part) {
  static uint64_t searches = 0;  // under mutex()
  const uint64_t search = ++searches;
  const PartPointer before = part->before.lock();
  bool waits = false;
  all_counterparts(*part, [&](const PartPointer& other) {
    if (other != nullptr && !other->retired) {
      other->target = search;
      waits = true;
    }
    return true;
  });
  if (before == nullptr || !waits) return;
  std::vector<Dependency> cycle{{before, part}};
  if (!find_path(*before, search, cycle)) return;

  std::string reason = "deadlock: operations are issued in different orders";
  const Part* from = cycle.back().next.get();
  for (const auto& [next, via] : cycle) {
    reason += concat("; ", from->str());
    reason += via == nullptr ? concat(" was issued after ", next->str())
                             : concat(" waits for rank ", via->rank, ", which must first complete ", next->str());
    from = next.get();
  }
  for (const Dependency& dependency : cycle) break_clique(*dependency.next->clique, ncclInternalError, reason);
}

/// Returns true if both calls are equal and their buffers are both registered or not; otherwise breaks the communicator. `first`: Collective or Message.
template <class First>
bool calls_match(CommunicatorState& clique, const First& begun, const Part& part, const trireme::Call& call) {
  const int first_rank = begun.first_rank, rank = part.rank;
  const trireme::Call& first = begun.call;
  if (first == call && begun.registered == part.registered) return true;
  if (first == call) {
    break_clique(clique, ncclInvalidUsage,
                 concat("ranks disagree in communicator '", clique.name, "': of ranks ", first_rank, " and ", rank,
                        ", one has registered its buffers of ", call.str()));
    return false;
  }
  break_clique(clique, ncclInvalidUsage,
               concat("ranks disagree in communicator '", clique.name, "': rank ", first_rank, " called ", first.str(), ", rank ", rank, " called ",
                      call.str()));
  return false;
}

void break_if_left(CommunicatorState& clique, const PartPointer& part, int peer) {
  if (clique.left[static_cast<size_t>(peer)])
    break_clique(clique, ncclRemoteError, concat(part->str(), " waits for rank ", peer, ", which has left the communicator"));
}

void join_collective(const PartPointer& part) {
  CommunicatorState& clique = *part->clique;
  const auto rank = static_cast<size_t>(part->rank);
  const int64_t number = clique.calls[rank]++;
  std::shared_ptr<Collective>& slot = clique.collectives[number];
  if (slot == nullptr) {
    slot = std::make_shared<Collective>();
    slot->call = part->call;
    slot->first_rank = part->rank;
    slot->registered = part->registered;
    slot->parts.resize(clique.devices.size());
  }
  const std::shared_ptr<Collective> collective = slot;
  if (!calls_match(clique, *collective, *part, part->call)) return;
  collective->parts[rank] = part;
  part->collective = collective;
  if (std::count(collective->parts.begin(), collective->parts.end(), nullptr) == 0) clique.collectives.erase(number);
  for (size_t peer = 0; peer < collective->parts.size(); ++peer)
    if (collective->parts[peer] == nullptr) break_if_left(clique, part, static_cast<int>(peer));
}

void join_message(const PartPointer& part, MessageEnd& end) {
  CommunicatorState& clique = *part->clique;
  const std::pair<int, int> ends = end.send ? std::pair(part->rank, end.peer) : std::pair(end.peer, part->rank);
  auto& waiting = (end.send ? clique.recvs : clique.sends)[ends];
  if (waiting.empty()) {
    end.message = std::make_shared<Message>();
    end.message->call = end.call;
    end.message->first_rank = part->rank;
    end.message->registered = part->registered;
    (end.send ? clique.sends : clique.recvs)[ends].push_back(end.message);
    break_if_left(clique, part, end.peer);
  } else {
    end.message = waiting.front();
    waiting.pop_front();
    calls_match(clique, *end.message, *part, end.call);
  }
  (end.send ? end.message->sender : end.message->receiver) = part;
  if (end.send) end.message->sender_region = end.region;
}

}  // namespace

std::mutex& mutex() {
  static auto& lock = *new std::mutex;
  return lock;
}

std::string Part::str() const {
  std::string what = call.str();
  if (!is_collective) {
    what = "";
    for (const MessageEnd& end : ends)
      what += concat(what.empty() ? "" : ", ", end.send ? "send to " : "recv from ", end.peer, " of ", end.call.count, " ", name_of(end.call.dtype));
  }
  return concat(what, " of communicator '", clique->name, "' on rank ", rank, " of ", clique->devices.size(), ", device ", device());
}

void issue(const PartPointer& part) {
  std::deque<PartPointer>& order = orders()[part->device()];
  if (!order.empty()) part->before = order.back();
  order.push_back(part);
  if (part->clique->error != ncclSuccess) return;
  if (part->is_collective) join_collective(part);
  for (MessageEnd& end : part->ends) join_message(part, end);
  break_if_cyclic(part);
}

bool ready(const Part& part) {
  if (part.dropped || part.clique->error != ncclSuccess) return true;
  return all_counterparts(part, [](const PartPointer& other) { return other != nullptr && other->phase != Part::Phase::kIssued; });
}

bool is_busy(const CommunicatorState& clique, int rank) {
  const std::deque<PartPointer>& order = orders()[clique.devices[static_cast<size_t>(rank)]];
  return std::ranges::any_of(
      order, [&](const PartPointer& part) { return part->clique.get() == &clique && part->rank == rank && part->phase != Part::Phase::kDone; });
}

void finish(Part& part) {
  part.phase = Part::Phase::kDone;
  retire_all();
}

void break_clique(CommunicatorState& clique, ncclResult_t error, const std::string& reason) {
  if (clique.error != ncclSuccess) return;
  clique.error = error;
  clique.reason = reason;
  clique.collectives.clear();  // no rank joins them any more
  clique.sends.clear();
  clique.recvs.clear();
  std::fprintf(stderr, "simulated NCCL: %s\n", reason.c_str());
}

void leave(CommunicatorState& clique, int rank, bool abort) {
  clique.left[static_cast<size_t>(rank)] = true;
  for (auto& [device, order] : orders()) {
    for (const PartPointer& part : order) {
      if (part->clique.get() != &clique) continue;
      if (part->rank == rank) {
        part->dropped = abort;
      } else {
        const bool waits = !all_counterparts(*part, [](const PartPointer& other) { return other != nullptr; });
        if (waits && part->collective != nullptr && part->collective->parts[static_cast<size_t>(rank)] == nullptr) break_if_left(clique, part, rank);
        for (const MessageEnd& end : part->ends)
          if (waits && end.peer == rank) break_if_left(clique, part, rank);
      }
    }
  }
  const bool all_left = std::count(clique.left.begin(), clique.left.end(), false) == 0;
  if (abort && !all_left) break_clique(clique, ncclRemoteError, concat("rank ", rank, " aborted communicator '", clique.name, "'"));
}

}  // namespace cuda_sim::nccl
