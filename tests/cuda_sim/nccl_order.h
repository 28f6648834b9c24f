#pragma once
// The operations that the ranks of the simulated NCCL have issued: matching of ranks, their order, and deadlock detection. See cuda_sim/nccl.h.
#include <nccl.h>

#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "parallel/comm/transfer.h"

namespace cuda_sim::nccl {

/// A buffer of an operation in flight.
struct Region {
  std::byte* memory = nullptr;
  size_t bytes = 0;
  bool input = false;
  bool output = false;
  std::vector<std::byte> snapshot{};  ///< contents of an input when the operation began
};

struct Part;

/// One collective call of all ranks.
struct Collective {
  trireme::Call call;
  bool registered = false;  ///< the buffers of the first rank
  int first_rank = 0;
  std::vector<std::shared_ptr<Part>> parts;  ///< by rank, null until issued
  std::once_flag computed;
  std::vector<std::vector<std::byte>> results;  ///< by rank
};

struct Message {
  trireme::Call call;
  bool registered = false;  ///< the buffer of the first rank
  int first_rank = 0;
  std::shared_ptr<Part> sender, receiver;  ///< null until issued
  size_t sender_region = 0;
};

/// The communicator state that its ranks share.
struct CommunicatorState {
  std::string name;
  int max_blocks = 0;        ///< maxCTAs
  std::vector<int> devices;  ///< by rank; -1 until it has joined
  std::vector<bool> left;
  std::vector<int64_t> calls;  ///< collectives each rank has issued
  ncclResult_t error = ncclSuccess;
  std::string reason;
  std::map<int64_t, std::shared_ptr<Collective>> collectives;                        ///< by number; not yet issued by all ranks
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> sends, recvs;  ///< unmatched, by (source, destination)
};

struct MessageEnd {
  bool send;
  int peer;
  trireme::Call call;
  size_t region;
  std::shared_ptr<Message> message{};  ///< from issue to end
};

/// One rank's part of an operation: of a collective, or a group of messages.
struct Part {
  std::shared_ptr<CommunicatorState> clique;
  int rank = 0;
  std::vector<Region> regions;
  bool is_collective = false;
  bool registered = false;   ///< its buffers are
  trireme::Call call;        ///< for a collective
  std::byte* out = nullptr;  ///< destination of a collective's result; null: none
  std::vector<MessageEnd> ends;

  enum class Phase : uint8_t { kIssued, kArrived, kDone } phase = Phase::kIssued;
  bool dropped = false;  ///< by its own rank's abort, or because its device failed
  bool retired = false;  ///< done, also if the operations of each device ran one after the other
  std::shared_ptr<Collective> collective;
  std::weak_ptr<Part> before;     ///< the part issued before this one on its device
  uint64_t seen = 0, target = 0;  ///< the last search for a cycle that has visited it, or that looked for it

  int device() const { return clique->devices[static_cast<size_t>(rank)]; }
  std::string str() const;  ///< "all_reduce(sum) of 3 F32 of communicator 'tensor' on rank 0 of 2, device 4"
};

/// Guards everything here. May be acquired while the machine's lock is held, never the other way round.
std::mutex& mutex();

// All functions below require mutex().

/// Appends the part to the order of its device and finds its counterparts. An invalid order or call breaks the communicators concerned.
void issue(const std::shared_ptr<Part>& part);
/// True if the part and all its counterparts have arrived, or its communicator is broken.
bool ready(const Part& part);
/// True if the rank has issued an operation of the communicator that is not done.
bool is_busy(const CommunicatorState& clique, int rank);
/// Marks the part as done: it has run or never will. It remains in the order of its device until it is retired.
void finish(Part& part);
/// Sets the communicator's error, unless it has one already, and prints the reason.
void break_clique(CommunicatorState& clique, ncclResult_t error, const std::string& reason);
/// Ends or aborts a rank's use of the communicator. An abort drops the operations that the rank has issued and not completed.
void leave(CommunicatorState& clique, int rank, bool abort);

}  // namespace cuda_sim::nccl
