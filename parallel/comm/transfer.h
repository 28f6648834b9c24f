#pragma once
// An operation between ranks that can access each other's data: the ranks' calls, the locations of their buffers, and the loops that move the data.
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

enum class Verb : uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll, kAllToAllV, kBroadcast, kMessage, kBarrier };

/// A rank's call: must be the same on all ranks of an operation.
struct Call {
  Verb verb = Verb::kBarrier;
  DType dtype = DType::kU8;
  int64_t count = 0;  ///< elements: of the buffer, or of one rank's part; 0 for all_to_all_v, whose counts differ by rank
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
  /// all_to_all_v: rank s sends send_counts[s][r] elements to rank r, which expects receive_counts[r][s].
  std::vector<std::vector<int64_t>> send_counts{}, receive_counts{};
  size_t posted = 0;
  Phase phase = Phase::kPosting;
};

/// The first counts of an all_to_all_v that differ between sender and receiver, in the words of count_mismatch (arguments.h), with `names` for the
/// ranks of the group; "" if all agree.
std::string find_count_mismatch(const Transfer& transfer, std::span<const int> names);

/// Moves the data of all ranks, which are threads of one process; reductions in rank order.
void move_data(const Transfer& transfer);

/// out = in[0] op in[1] op ..., element by element in that order, `count` of each. bf16 and fp16 are accumulated in fp32 and rounded once.
/// `out` may be one of the inputs.
void reduce_in_order(DType dtype, ReduceOp op, std::span<const std::byte* const> in, std::byte* out, int64_t count);

}  // namespace trireme
