#pragma once
#include "parallel/param.h"
#include "parallel/tensor/region.h"
#include "parallel/tensor/sample_squares.h"

namespace trireme {

/// Y = X W^T + b, W split by output rows over the tensor axis.
/// Shapes on this rank: x [M/t or M, D], w [F/t,D], b [F/t], y [M,F/t].
/// Backward: dx = dy W is partial and is reduced by the conjugate of `enter`; dw += dy^T x with x gathered again. (Sequence parallelism saves memory
/// by keeping only this rank's rows of x between forward and backward.)
/// Communication: `enter` in the forward, its conjugate in the backward, and under sequence parallelism one more all-gather for dw. The forward
/// cannot overlap it, because its product needs all of x. `backward` overlaps the gather of x with the product dx, and the reduction of dx with the
/// product dw.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
struct ColumnParallelLinear {
  Param* weight;
  Param* bias;  ///< null: none
  const Region* region;
  const char* name;  ///< name of the layer in an OperationLog

  Tensor forward(Context& ctx, const Tensor& x) const;
  /// Returns GELU(Y) and sets `hidden` to Y, which the backward of GELU needs. Requires a bias.
  Tensor forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const;
  Tensor backward_input(Context& ctx, const Tensor& dy) const;
  PendingRegionOp gather(Context& ctx, const Tensor& x) const { return region->enter_forward(ctx, x); }  ///< for backward_weight
  void backward_weight(Context& ctx, PendingRegionOp x, const Tensor& dy) const;
  void add_sample_squares(Context& ctx, PendingRegionOp x, const Tensor& dy, SampleSquares& squares) const;  ///< of backward_weight(x, dy)
  /// Fused backward_input + backward_weight, bit-identical to calling both; returns the pending reduction of dx.
  [[nodiscard]] PendingRegionOp backward(Context& ctx, const Tensor& x, const Tensor& dy) const;

 private:
  Tensor input_product(Context& ctx, const Tensor& dy) const;  ///< dx [M,D], partial
};

/// Y = X W^T + b, W split by input columns; b is added once, after the partial products are summed.
/// Shapes on this rank: x [M,D/t], w [F,D/t], b [F], y [M/t or M, F].
/// Communication: `exit` in the forward; its conjugate in the backward, started by `gather`, whose dy [M,F] both products use. Work that does not
/// need dy overlaps it.
struct RowParallelLinear {
  Param* weight;
  Param* bias;  ///< null: none
  const Region* region;
  const char* name;  ///< name of the layer in an OperationLog

  Tensor forward(Context& ctx, const Tensor& x) const;
  struct InputGradient {
    Tensor dx;      ///< [M,D/t]
    Tensor dy_all;  ///< [M,F]: dy of every row, for backward_weight
  };
  PendingRegionOp gather(Context& ctx, const Tensor& dy) const { return region->exit_backward(ctx, dy); }  ///< for backward_input
  InputGradient backward_input(Context& ctx, PendingRegionOp dy) const;
  void backward_weight(Context& ctx, const Tensor& x, const Tensor& dy_all) const;
  void add_sample_squares(Context& ctx, const Tensor& x, const Tensor& dy_all, SampleSquares& squares) const;  ///< of backward_weight(x, dy_all)
};

}  // namespace trireme
