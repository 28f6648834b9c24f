#include "trainer/model/norm.h"

#include "kernels/ops/norm.h"

namespace trireme {

Tensor Norm::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  const Tensor y = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  saved.rstd = Tensor::empty(ctx, {x.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  if (bias) {
    saved.mean = Tensor::empty(ctx, {x.dim(0)}, x.dtype(), MemoryCategory::kActivations);
    layernorm_forward(ctx, x, weight->value, bias->value, epsilon, y, saved.mean, saved.rstd);
  } else {
    rmsnorm_forward(ctx, x, weight->value, epsilon, y, saved.rstd);
  }
  return y;
}

Tensor Norm::backward_input(Context& ctx, const Tensor& dy, const Tensor& x, Saved& saved) const {
  const Tensor dx = Tensor::empty(ctx, x.shape(), x.dtype(), MemoryCategory::kActivations);
  if (bias) {
    layernorm_backward_input(ctx, dy, x, weight->value, saved.mean, saved.rstd, dx);
  } else {
    rmsnorm_backward_input(ctx, dy, x, weight->value, saved.rstd, dx);
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
