#pragma once
// What the ranks of the simulated NCCL have issued: who meets whom, in what order, and whether that can end. See cuda_sim/nccl.h.
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

/// Memory of an operation in flight.
struct Region {
  std::byte* memory = nullptr;
  size_t bytes = 0;
  bool input = false;
  bool output = false;
  std::vector<std::byte> snapshot{};  ///< of an input, when the operation began
};

struct Part;

/// One call of all ranks.
struct Collective {
  trireme::Call call;
  int first_rank = 0;
  std::vector<std::shared_ptr<Part>> parts;  ///< by rank, null until issued
  std::once_flag computed;
  std::vector<std::vector<std::byte>> results;  ///< by rank
};

struct Message {
  trireme::Call call;
  int first_rank = 0;
  std::shared_ptr<Part> sender, receiver;  ///< null until issued
  size_t sender_region = 0;
};

/// The communicator that ranks share.
struct Clique {
  std::string name;
  std::vector<int> devices;  ///< by rank; -1 until it has joined
  std::vector<bool> left;
  std::vector<int64_t> calls;  ///< collectives each rank has issued
  ncclResult_t error = ncclSuccess;
  std::string reason;
  std::map<int64_t, std::shared_ptr<Collective>> collectives;                        ///< not yet issued by all, by number
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> sends, recvs;  ///< unmatched, by (source, destination)
};

struct MessageEnd {
  bool send;
  int peer;
  trireme::Call call;
  size_t region;
  std::shared_ptr<Message> message{};  ///< from issue to end
};

/// What one rank issued at once: its part of a collective, or a group of messages.
struct Part {
  std::shared_ptr<Clique> clique;
  int rank = 0;
  std::vector<Region> regions;
  bool is_collective = false;
  trireme::Call call;        ///< of a collective
  std::byte* out = nullptr;  ///< where a collective's result goes; null: nowhere
  std::vector<MessageEnd> ends;

  enum class Phase : uint8_t { kIssued, kArrived, kDone } phase = Phase::kIssued;
  bool dropped = false;  ///< by its own rank's abort, or the end of its device
  bool retired = false;  ///< done, and would be if the operations of each device ran one after the other
  std::shared_ptr<Collective> collective;
  std::weak_ptr<Part> before;  ///< issued before it on its device

  int device() const { return clique->devices[static_cast<size_t>(rank)]; }
  std::string str() const;  ///< "all_reduce(sum) of 3 F32 of communicator 'tensor' on rank 0 of 2, device 4"
};

/// Guards everything here. Taken under the machine's lock, never the other way round.
std::mutex& mutex();

// All of these under mutex().

/// Takes its place in the order of its device and finds its counterparts. An order or a call that cannot be right breaks the communicators concerned.
void issue(const std::shared_ptr<Part>& part);
/// It and all it meets have arrived, or its communicator is broken.
bool ready(const Part& part);
/// It has run, or never will. It stays in the order of its device until it is retired.
void finish(Part& part);
/// Sets the error of the communicator, once, and tells it.
void break_clique(Clique& clique, ncclResult_t error, const std::string& reason);
/// A rank ends its use of the communicator, or aborts it: what it has issued and not done never happens.
void leave(Clique& clique, int rank, bool abort);

}  // namespace cuda_sim::nccl
