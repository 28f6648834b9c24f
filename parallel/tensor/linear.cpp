#include "parallel/tensor/linear.h"

#include "kernels/ops/matmul.h"

namespace trireme {

Tensor ColumnParallelLinear::forward(Context& ctx, const Tensor& x) const {
  const Tensor all = region->enter_forward(ctx, x);
  const Tensor y = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, all, weight->value, bias ? bias->value : Tensor(), y);
  return y;
}

Tensor ColumnParallelLinear::forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const {
  const Tensor all = region->enter_forward(ctx, x);
  hidden = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  const Tensor y = Tensor::empty(ctx, hidden.shape(), x.dtype(), MemoryCategory::kActivations);
  linear_gelu_forward(ctx, all, weight->value, bias->value, hidden, y);
  return y;
}

Tensor ColumnParallelLinear::backward_input(Context& ctx, const Tensor& dy) const {
  const Tensor dx = Tensor::empty(ctx, {dy.dim(0), weight->value.dim(1)}, dy.dtype(), MemoryCategory::kActivations);
  linear_backward_input(ctx, dy, weight->value, dx);
  return region->enter_backward(ctx, dx);
}

void ColumnParallelLinear::backward_weight(Context& ctx, const Tensor& x, const Tensor& dy) const {
  linear_backward_weight(ctx, dy, region->enter_forward(ctx, x), weight->grad);
  if (bias) bias_backward(ctx, dy, bias->grad);
}

Tensor RowParallelLinear::forward(Context& ctx, const Tensor& x) const {
  const Tensor partial = Tensor::empty(ctx, {x.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, x, weight->value, Tensor(), partial);
  const Tensor y = region->exit_forward(ctx, partial);
  if (bias) bias_forward(ctx, bias->value, y);
  return y;
}

RowParallelLinear::InputGradient RowParallelLinear::backward_input(Context& ctx, const Tensor& dy) const {
  const Tensor dy_all = region->exit_backward(ctx, dy);
  const Tensor dx = Tensor::empty(ctx, {dy_all.dim(0), weight->value.dim(1)}, dy.dtype(), MemoryCategory::kActivations);
  linear_backward_input(ctx, dy_all, weight->value, dx);
  return {dx, dy_all};
}

void RowParallelLinear::backward_weight(Context& ctx, const Tensor& x, const Tensor& dy_all) const {
  linear_backward_weight(ctx, dy_all, x, weight->grad);
  if (bias) bias_backward(ctx, dy_all, bias->grad);
}

}  // namespace trireme
