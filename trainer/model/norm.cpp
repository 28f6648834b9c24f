#include "trainer/model/norm.h"

#include "kernels/ops/norm.h"

namespace trireme {

void Norm::prepare(Context& ctx, const Tensor& x, Saved& saved) const {
  const auto statistic = [&] { return Tensor::empty(ctx, {x.dim(0)}, accumulator_of(x.dtype()), MemoryCategory::kActivations); };
  saved.rstd = statistic();
  if (bias) saved.mean = statistic();
}

Tensor Norm::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  prepare(ctx, x, saved);
  return forward_again(ctx, x, saved);
}

Tensor Norm::forward_again(Context& ctx, const Tensor& x, const Saved& saved) const {
  const Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  if (bias) {
    layernorm_forward(ctx, x, weight->value, bias->value, epsilon, y, saved.mean, saved.rstd);
  } else {
    rmsnorm_forward(ctx, x, weight->value, epsilon, y, saved.rstd);
  }
  return y;
}

Tensor Norm::forward_of_sum(Context& ctx, const Tensor& a, const Tensor& b, Tensor& sum, Saved& saved) const {
  sum = Tensor::empty(ctx, a.shape(), a.dtype(), MemoryCategory::kActivations);
  prepare(ctx, sum, saved);
  const Tensor y = Tensor::empty(ctx, a.shape(), a.dtype(), MemoryCategory::kActivations);
  if (bias) {
    add_layernorm_forward(ctx, a, b, weight->value, bias->value, epsilon, sum, y, saved.mean, saved.rstd);
  } else {
    add_rmsnorm_forward(ctx, a, b, weight->value, epsilon, sum, y, saved.rstd);
  }
  return y;
}

Tensor Norm::backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& residual, Saved& saved) const {
  const Tensor dx = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  if (bias) {
    layernorm_backward_input(ctx, dy, x, weight->value, saved.mean, saved.rstd, residual, dx);
  } else {
    rmsnorm_backward_input(ctx, dy, x, weight->value, saved.rstd, residual, dx);
  }
  saved.dy = dy;
  return dx;
}

void Norm::backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const {
  if (bias) {
    layernorm_backward_weight(ctx, saved.dy, x, saved.mean, saved.rstd, weight->grad, bias->grad);
  } else {
    rmsnorm_backward_weight(ctx, saved.dy, x, saved.rstd, weight->grad);
  }
}

}  // namespace trireme
