#include "trainer/model/mlp.h"

#include "kernels/ops/activation.h"

namespace trireme {

Tensor Mlp::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  if (gelu) {
    saved.activated = up.forward_gelu(ctx, x, saved.hidden);
  } else {
    saved.hidden = up.forward(ctx, x);
    saved.activated = Tensor::empty(ctx, {saved.hidden.dim(0), ffn}, x.dtype(), MemoryCategory::kActivations);
    swiglu_forward(ctx, saved.hidden, saved.activated);
  }
  return down.forward(ctx, saved.activated);
}

Tensor Mlp::backward_input(Context& ctx, const Tensor& dy, Saved& saved) const {
  const auto [dactivated, dy_all] = down.backward_input(ctx, dy);
  saved.dy_all = dy_all;
  saved.dhidden = Tensor::empty(ctx, saved.hidden.shape(), dy.dtype(), MemoryCategory::kActivations);
  if (gelu) {
    gelu_backward(ctx, dactivated, saved.hidden, saved.dhidden);
  } else {
    swiglu_backward(ctx, dactivated, saved.hidden, saved.dhidden);
  }
  saved.hidden.reset();
  return up.backward_input(ctx, saved.dhidden);
}

void Mlp::backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const {
  down.backward_weight(ctx, saved.activated, saved.dy_all);
  up.backward_weight(ctx, x, saved.dhidden);
}

}  // namespace trireme
