#include "parallel/tensor/linear.h"

#include "kernels/core/operation_log.h"
#include "kernels/ops/matmul.h"

namespace trireme {

Tensor Linear::forward(Context& ctx, const Tensor& x) const {
  const LogLayer layer(ctx, name);
  const Tensor all = splits_outputs() ? region->enter_forward(ctx, x).wait(ctx) : x;
  const Tensor product = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, all, weight->value, splits_outputs() && bias ? bias->value : Tensor(), product);
  if (splits_outputs()) return product;
  const Tensor y = region->exit_forward(ctx, product).wait(ctx);
  if (bias) bias_forward(ctx, bias->value, y);
  return y;
}

Tensor Linear::forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const {
  const LogLayer layer(ctx, name);
  const Tensor all = region->enter_forward(ctx, x).wait(ctx);
  hidden = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  const Tensor y = Tensor::empty(ctx, hidden.shape(), x.dtype(), MemoryCategory::kActivations);
  linear_gelu_forward(ctx, all, weight->value, bias->value, hidden, y);
  return y;
}

PendingRegionOp Linear::gather_gradient(Context& ctx, const Tensor& dy) const {
  return splits_outputs() ? PendingRegionOp{dy, dy, Work()} : region->exit_backward(ctx, dy);
}

PendingRegionOp Linear::backward_input(Context& ctx, const Tensor& dy_all) const {
  const Tensor dx = Tensor::empty(ctx, {dy_all.dim(0), weight->value.dim(1)}, dy_all.dtype(), MemoryCategory::kActivations);
  {
    const LogLayer layer(ctx, name);
    linear_backward_input(ctx, dy_all, weight->value, dx);
  }
  return splits_outputs() ? region->enter_backward(ctx, dx) : PendingRegionOp{dx, dx, Work()};
}

PendingRegionOp Linear::gather_input(Context& ctx, const Tensor& x) const {
  return splits_outputs() && weight->trainable() ? region->enter_forward(ctx, x) : PendingRegionOp{x, x, Work()};
}

void Linear::backward_weight(Context& ctx, PendingRegionOp x, const Tensor& dy_all) const {
  const LogLayer layer(ctx, name);
  if (weight->trainable()) linear_backward_weight(ctx, dy_all, x.wait(ctx), weight->grad, weight->must_add_to_grad());
  if (bias && bias->trainable()) bias_backward(ctx, dy_all, bias->grad_to_add_to(ctx));
}

}  // namespace trireme
