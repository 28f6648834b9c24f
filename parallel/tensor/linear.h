#pragma once
#include "parallel/param.h"
#include "parallel/tensor/region.h"

namespace trireme {

/// Y = X W^T + b, W split by output rows over the tensor axis.
/// Shapes on this rank: x [M/t or M, D], w [F/t,D], b [F/t], y [M,F/t].
/// Backward: dx = dy W is partial, so it leaves through the conjugate of `enter`; dw += dy^T x with x gathered again (keeping only this rank's
/// rows of x between forward and backward is what sequence parallelism saves).
/// Communication: forward `enter`; backward `enter` conjugate, and under sequence parallelism one more all-gather for dw. Nothing hides it in the
/// forward, whose product needs all of x. `backward`, where dw follows dx at once, gathers x behind the product dx and reduces dx behind the
/// product dw.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
struct ColumnParallelLinear {
  Param* weight;
  Param* bias;  ///< null: none
  const Region* region;
  const char* name;  ///< of the layer, in an OperationLog

  Tensor forward(Context& ctx, const Tensor& x) const;
  /// GELU(Y); `hidden` is Y, which its backward needs. With a bias.
  Tensor forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const;
  Tensor backward_input(Context& ctx, const Tensor& dy) const;
  PendingRegionOp gather(Context& ctx, const Tensor& x) const { return region->enter_forward(ctx, x); }  ///< for backward_weight
  void backward_weight(Context& ctx, PendingRegionOp x, const Tensor& dy) const;
  /// Both, and the bits of both; dx is still on its way.
  [[nodiscard]] PendingRegionOp backward(Context& ctx, const Tensor& x, const Tensor& dy) const;

 private:
  Tensor input_product(Context& ctx, const Tensor& dy) const;  ///< dx [M,D], partial
};

/// Y = X W^T + b, W split by input columns; b is added once, after the partial products are summed.
/// Shapes on this rank: x [M,D/t], w [F,D/t], b [F], y [M/t or M, F].
/// Communication: forward `exit`; backward its conjugate, started by `gather`, whose dy [M,F] serves both products. What needs no dy hides it.
struct RowParallelLinear {
  Param* weight;
  Param* bias;  ///< null: none
  const Region* region;
  const char* name;  ///< of the layer, in an OperationLog

  Tensor forward(Context& ctx, const Tensor& x) const;
  struct InputGradient {
    Tensor dx;      ///< [M,D/t]
    Tensor dy_all;  ///< [M,F]: dy of every row, for backward_weight
  };
  PendingRegionOp gather(Context& ctx, const Tensor& dy) const { return region->exit_backward(ctx, dy); }  ///< for backward_input
  InputGradient backward_input(Context& ctx, PendingRegionOp dy) const;
  void backward_weight(Context& ctx, const Tensor& x, const Tensor& dy_all) const;
};

}  // namespace trireme
