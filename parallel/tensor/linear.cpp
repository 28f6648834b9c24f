#include "parallel/tensor/linear.h"

#include <utility>

#include "kernels/core/operation_log.h"
#include "kernels/ops/matmul.h"

namespace trireme {
namespace {

void add_bias_squares(Context& ctx, const Param& bias, const Tensor& dy, SampleSquares& squares) {
  squares.add_rows(ctx, squares.all_rows(), {&bias}, [&](int64_t begin, int64_t count, const std::vector<Tensor>& gradients) {
    bias_backward(ctx, dy.rows(begin, count), gradients.front());
  });
}

}  // namespace

Tensor ColumnParallelLinear::forward(Context& ctx, const Tensor& x) const {
  const LogLayer layer(ctx, name);
  const Tensor all = region->enter_forward(ctx, x).wait(ctx);
  const Tensor y = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, all, weight->value, bias ? bias->value : Tensor(), y);
  return y;
}

Tensor ColumnParallelLinear::forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const {
  const LogLayer layer(ctx, name);
  const Tensor all = region->enter_forward(ctx, x).wait(ctx);
  hidden = Tensor::empty(ctx, {all.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  const Tensor y = Tensor::empty(ctx, hidden.shape(), x.dtype(), MemoryCategory::kActivations);
  linear_gelu_forward(ctx, all, weight->value, bias->value, hidden, y);
  return y;
}

Tensor ColumnParallelLinear::input_product(Context& ctx, const Tensor& dy) const {
  const LogLayer layer(ctx, name);
  const Tensor dx = Tensor::empty(ctx, {dy.dim(0), weight->value.dim(1)}, dy.dtype(), MemoryCategory::kActivations);
  linear_backward_input(ctx, dy, weight->value, dx);
  return dx;
}

Tensor ColumnParallelLinear::backward_input(Context& ctx, const Tensor& dy) const {
  return region->enter_backward(ctx, input_product(ctx, dy)).wait(ctx);
}

void ColumnParallelLinear::backward_weight(Context& ctx, PendingRegionOp x, const Tensor& dy) const {
  const LogLayer layer(ctx, name);
  linear_backward_weight(ctx, dy, x.wait(ctx), weight->grad, weight->must_add_to_grad());
  if (bias) bias_backward(ctx, dy, bias->grad_to_add_to(ctx));
}

void ColumnParallelLinear::add_sample_squares(Context& ctx, PendingRegionOp x, const Tensor& dy, SampleSquares& squares) const {
  const LogLayer layer(ctx, name);
  squares.add_product(ctx, *weight, dy, x.wait(ctx));
  if (bias) add_bias_squares(ctx, *bias, dy, squares);
}

PendingRegionOp ColumnParallelLinear::backward(Context& ctx, const Tensor& x, const Tensor& dy) const {
  PendingRegionOp all = gather(ctx, x);
  PendingRegionOp dx = region->enter_backward(ctx, input_product(ctx, dy));
  backward_weight(ctx, std::move(all), dy);
  return dx;
}

Tensor RowParallelLinear::forward(Context& ctx, const Tensor& x) const {
  const LogLayer layer(ctx, name);
  const Tensor partial = Tensor::empty(ctx, {x.dim(0), weight->value.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, x, weight->value, Tensor(), partial);
  const Tensor y = region->exit_forward(ctx, partial).wait(ctx);
  if (bias) bias_forward(ctx, bias->value, y);
  return y;
}

RowParallelLinear::InputGradient RowParallelLinear::backward_input(Context& ctx, PendingRegionOp dy) const {
  const LogLayer layer(ctx, name);
  const Tensor dy_all = dy.wait(ctx);
  const Tensor dx = Tensor::empty(ctx, {dy_all.dim(0), weight->value.dim(1)}, dy_all.dtype(), MemoryCategory::kActivations);
  linear_backward_input(ctx, dy_all, weight->value, dx);
  return {dx, dy_all};
}

void RowParallelLinear::backward_weight(Context& ctx, const Tensor& x, const Tensor& dy_all) const {
  const LogLayer layer(ctx, name);
  linear_backward_weight(ctx, dy_all, x, weight->grad, weight->must_add_to_grad());
  if (bias) bias_backward(ctx, dy_all, bias->grad_to_add_to(ctx));
}

void RowParallelLinear::add_sample_squares(Context& ctx, const Tensor& x, const Tensor& dy_all, SampleSquares& squares) const {
  const LogLayer layer(ctx, name);
  squares.add_product(ctx, *weight, dy_all, x);
  if (bias) add_bias_squares(ctx, *bias, dy_all, squares);
}

}  // namespace trireme
