#include "trainer/model/mlp.h"

#include <utility>

#include "kernels/ops/activation.h"

namespace trireme {

Tensor Mlp::activate(Context& ctx, const Tensor& hidden) const {
  const Tensor activated = Tensor::empty(ctx, {hidden.dim(0), ffn}, hidden.dtype(), MemoryCategory::kActivations);
  activation == Activation::kSilu ? swiglu_forward(ctx, hidden, activated) : geglu_forward(ctx, hidden, activated, form());
  return activated;
}

Tensor Mlp::forward_gelu(Context& ctx, const Tensor& x, Saved& saved) const {
  if (form() == Gelu::kTanh && up.adapters.empty()) return up.forward_gelu(ctx, x, saved.hidden);  // products with this one at their end exist
  saved.hidden = up.forward(ctx, x);
  const Tensor activated = Tensor::empty(ctx, saved.hidden.shape(), saved.hidden.dtype(), MemoryCategory::kActivations);
  gelu_forward(ctx, saved.hidden, activated, form());
  return activated;
}

Tensor Mlp::forward(Context& ctx, const Tensor& x, Saved& saved) const {
  const auto kept = [&](Tensor activated) {
    if (keeps_activated) saved.activated = activated;
    return activated;
  };
  if (!gated) return down.forward(ctx, kept(forward_gelu(ctx, x, saved)));
  saved.hidden = up.forward(ctx, x);
  return down.forward(ctx, kept(activate(ctx, saved.hidden)));
}

void Mlp::recompute_forward(Context& ctx, const Tensor& x, Saved& saved) const {
  if (gated) {
    saved.hidden = up.forward(ctx, x);
  } else {
    const Tensor activated = forward_gelu(ctx, x, saved);
    if (keeps_activated) saved.activated = activated;
  }
}

/// Reuses the buffers of saved.hidden and of the activations' gradient where shapes allow.
void Mlp::backward_to_hidden(Context& ctx, const Tensor& dy, Saved& saved) const {
  PendingRegionOp dy_all = down.gather_gradient(ctx, dy);
  const Tensor hidden = std::exchange(saved.hidden, Tensor());
  const bool kept = saved.activated.defined();
  if (gated && !kept) saved.activated = activate(ctx, hidden);
  saved.dy_all = dy_all.wait(ctx);
  const Tensor dactivated = down.backward_input(ctx, saved.dy_all).wait(ctx);
  if (gated) {
    activation == Activation::kSilu ? swiglu_backward(ctx, dactivated, hidden, hidden) : geglu_backward(ctx, dactivated, hidden, hidden, form());
    saved.dhidden = hidden;
  } else {
    gelu_backward(ctx, dactivated, hidden, dactivated, form());
    saved.dhidden = dactivated;
    if (!kept) {
      gelu_forward(ctx, hidden, hidden, form());
      saved.activated = hidden;
    }
  }
}

Tensor Mlp::backward_input(Context& ctx, const Tensor& dy, Saved& saved) const {
  backward_to_hidden(ctx, dy, saved);
  return up.backward_input(ctx, saved.dhidden).wait(ctx);
}

WeightGradients Mlp::weight_gradients(const Tensor& x, const Saved& saved) const {
  return {ProductGradient{&down, saved.activated, saved.dy_all}, ProductGradient{&up, x, saved.dhidden}};
}

Tensor Mlp::backward(Context& ctx, const Tensor& x, const Tensor& dy, Saved& saved) const {
  backward_to_hidden(ctx, dy, saved);
  PendingRegionOp all = up.gather_input(ctx, x);
  PendingRegionOp dx = up.backward_input(ctx, saved.dhidden);
  up.backward_weight(ctx, std::move(all), saved.dhidden);
  down.backward_weight(ctx, down.gather_input(ctx, saved.activated), saved.dy_all);
  return dx.wait(ctx);
}

}  // namespace trireme
