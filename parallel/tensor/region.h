#pragma once
// The boundary between activations that are replicated over tensor ranks (or split by rows, under sequence parallelism) and the matrix products that
// are split over tensor ranks. Each crossing and its backward are a conjugate pair:
//            forward            backward                         forward           backward
//   enter    copy               all-reduce       sequence:       all-gather        reduce-scatter
//   exit     all-reduce         copy             parallel:       reduce-scatter    all-gather
// Wire, bytes per rank for a crossing that communicates: all-reduce 2(t-1)/t * M*D*size; all-gather, reduce-scatter (t-1)/t * M*D*size.
// Sources: Shoeybi et al. 2019, arXiv:1909.08053; Korthikanti et al. 2022, arXiv:2205.05198.
#include "parallel/comm/communicator.h"

namespace trireme {

/// Adds a collective of `bytes` in total to the context's log, if the context has one and `group` has more than one rank.
void log_collective(const Context& ctx, const Communicator& group, const char* verb, DType dtype, int64_t bytes);

/// A crossing in flight. Compute what does not need its result before `wait`; call `wait` exactly once.
struct PendingRegionOp {
  Tensor source, result;  ///< both belong to the operation until `wait`; the same tensor if the crossing is in place or moves nothing
  Work work;
  Tensor wait(Context& ctx);
};

class Region {
 public:
  Region(Communicator& tensor, bool sequence_parallel);

  [[nodiscard]] PendingRegionOp enter_forward(Context& ctx, const Tensor& x) const;    ///< [M/t or M, D] -> [M,D]
  [[nodiscard]] PendingRegionOp enter_backward(Context& ctx, const Tensor& dx) const;  ///< [M,D] partial -> [M/t or M, D]
  [[nodiscard]] PendingRegionOp exit_forward(Context& ctx, const Tensor& y) const;     ///< [M,D] partial -> [M/t or M, D]
  [[nodiscard]] PendingRegionOp exit_backward(Context& ctx, const Tensor& dy) const;   ///< [M/t or M, D] -> [M,D]

  /// Rows of the residual stream on this rank, given `rows` in total, and the index of the first.
  int64_t local_rows(int64_t rows) const { return rows / row_shards_; }
  int64_t first_row(int64_t rows) const { return row_shards_ > 1 ? local_rows(rows) * tensor_->rank() : 0; }
  /// True if gradients of parameters on the residual stream (norms, positions) are partial sums over tensor ranks.
  bool gradients_partial() const { return row_shards_ > 1; }
  Communicator& tensor() const { return *tensor_; }

 private:
  PendingRegionOp reduce(Context& ctx, const Tensor& partial) const;
  PendingRegionOp gather(Context& ctx, const Tensor& rows) const;

  Communicator* tensor_;
  int row_shards_;  ///< tensor ranks that share the rows of the residual stream: 1 without sequence parallelism
};

}  // namespace trireme
