#include "trainer/model/mlp.h"

#include <utility>

#include "kernels/ops/activation.h"

namespace trireme {

Tensor Mlp::activate(Context& ctx, const Tensor& hidden) const {
  const Tensor activated = Tensor::empty(ctx, {hidden.dim(0), ffn}, hidden.dtype(), MemoryCategory::kActivations);
  swiglu_forward(ctx, hidden, activated);
  return activated;
}

Tensor Mlp::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  if (gelu) return down.forward(ctx, up.forward_gelu(ctx, x, saved.hidden));
  saved.hidden = up.forward(ctx, x);
  return down.forward(ctx, activate(ctx, saved.hidden));
}

void Mlp::backward_activation(Context& ctx, const Tensor& dactivated, Saved& saved) const {
  const Tensor hidden = std::exchange(saved.hidden, Tensor());
  if (gelu) {
    gelu_backward(ctx, dactivated, hidden, dactivated);
    gelu_forward(ctx, hidden, hidden);
    saved.dhidden = dactivated;
    saved.activated = hidden;
  } else {
    saved.activated = activate(ctx, hidden);
    swiglu_backward(ctx, dactivated, hidden, hidden);
    saved.dhidden = hidden;
  }
}

Tensor Mlp::backward_input(Context& ctx, const Tensor& dy, Saved& saved) const {
  RowParallelLinear::InputGradient gradient = down.backward_input(ctx, dy);
  saved.dy_all = gradient.dy_all;
  backward_activation(ctx, std::exchange(gradient.dx, Tensor()), saved);
  return up.backward_input(ctx, saved.dhidden);
}

void Mlp::backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const {
  down.backward_weight(ctx, saved.activated, saved.dy_all);
  up.backward_weight(ctx, x, saved.dhidden);
}

}  // namespace trireme
