#pragma once
#include "parallel/param.h"
#include "parallel/tensor/region.h"

namespace trireme {

/// The dimension of W that the tensor ranks share.
enum class LinearSplit : uint8_t {
  kOutputs,  ///< output rows ("column-parallel"): y is split, dx is a partial sum
  kInputs,   ///< input columns ("row-parallel"): x is split, y is a partial sum
};

/// Y = X W^T + b, with W split over the tensor axis.
///            x on this rank   w         b       y on this rank   communication, forward and backward
///   kOutputs [M/t or M, D]    [F/t,D]   [F/t]   [M,F/t]          `enter`, and under sequence parallelism one more all-gather for dw
///   kInputs  [M,D/t]          [F,D/t]   [F]     [M/t or M, F]    `exit`; b is added once, behind the sum
/// x is [M/t or M, D] as the residual stream has it: sequence parallelism saves memory by keeping only this rank's rows between forward and backward.
/// What gather_input and gather_gradient start overlaps whatever does not need it, and the reduction of dx overlaps the product dw.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
struct Linear {
  Param* weight;
  Param* bias;  ///< null: none
  LinearSplit split;
  const Region* region;
  const char* name;  ///< name of the layer in an OperationLog

  Tensor forward(Context& ctx, const Tensor& x) const;
  /// Returns GELU(Y) and sets `hidden` to Y, which the backward of GELU needs. Requires kOutputs and a bias.
  Tensor forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const;
  /// dy of all rows, which both products of the backward read. Communicates for kInputs under sequence parallelism; otherwise it is dy.
  [[nodiscard]] PendingRegionOp gather_gradient(Context& ctx, const Tensor& dy) const;
  /// dx = dy W, as x is split.   dy_all of all rows.
  [[nodiscard]] PendingRegionOp backward_input(Context& ctx, const Tensor& dy_all) const;
  /// x of all rows, for dw. Communicates for kOutputs under sequence parallelism; otherwise, and for a frozen weight, it is x.
  [[nodiscard]] PendingRegionOp gather_input(Context& ctx, const Tensor& x) const;
  /// dw += dy^T x, db += the sum of the rows of dy, without the gradients of frozen parameters.   dy_all, x: of all rows.
  void backward_weight(Context& ctx, PendingRegionOp x, const Tensor& dy_all) const;

 private:
  bool splits_outputs() const { return split == LinearSplit::kOutputs; }
};

}  // namespace trireme
