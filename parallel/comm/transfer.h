#pragma once
// An operation between the rank threads of one process: what the ranks called, where their buffers are, and the loops that move the data.
#include <cstddef>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

enum class Verb : uint8_t { kAllReduce, kAllGather, kReduceScatter, kBroadcast, kMessage, kBarrier };

/// What a rank called: must be the same on all ranks of an operation.
struct Call {
  Verb verb = Verb::kBarrier;
  DType dtype = DType::kU8;
  int64_t count = 0;  ///< elements: of the buffer, or of one rank's part
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
  bool operator==(const Call&) const = default;

  std::string str() const;  ///< "all_reduce(sum) of 12 F32"
};

/// One operation: a collective of a group, or a message (from in[0] to out[0]). `in` and `out` may alias as communicator.h allows.
struct Transfer {
  enum class Phase : uint8_t { kPosting, kMoving, kDone };
  Call call;
  int first_rank = 0;                ///< world rank that posted first
  std::vector<const std::byte*> in;  ///< by rank in the group
  std::vector<std::byte*> out;
  size_t posted = 0;
  Phase phase = Phase::kPosting;
};

/// Moves the data of all ranks; reductions in rank order.
void move_data(const Transfer& transfer);

}  // namespace trireme
