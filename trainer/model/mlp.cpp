#include "trainer/model/mlp.h"

#include <utility>

#include "kernels/ops/activation.h"
#include "kernels/ops/samples.h"

namespace trireme {

Tensor Mlp::activate(Context& ctx, const Tensor& hidden) const {
  const Tensor activated = Tensor::empty(ctx, {hidden.dim(0), ffn}, hidden.dtype(), MemoryCategory::kActivations);
  activation == Activation::kSilu ? swiglu_forward(ctx, hidden, activated) : geglu_forward(ctx, hidden, activated, form());
  return activated;
}

Tensor Mlp::forward_gelu(Context& ctx, const Tensor& x, Saved& saved) const {
  if (form() == Gelu::kTanh) return up.forward_gelu(ctx, x, saved.hidden);  // products with this one at their end exist
  saved.hidden = up.forward(ctx, x);
  const Tensor activated = Tensor::empty(ctx, saved.hidden.shape(), saved.hidden.dtype(), MemoryCategory::kActivations);
  gelu_forward(ctx, saved.hidden, activated, Gelu::kErf);
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
  PendingRegionOp dy_all = down.gather(ctx, dy);
  const Tensor hidden = std::exchange(saved.hidden, Tensor());
  const bool kept = saved.activated.defined();
  if (gated && !kept) saved.activated = activate(ctx, hidden);
  const RowParallelLinear::InputGradient gradient = down.backward_input(ctx, std::move(dy_all));
  saved.dy_all = gradient.dy_all;
  if (gated) {
    activation == Activation::kSilu ? swiglu_backward(ctx, gradient.dx, hidden, hidden) : geglu_backward(ctx, gradient.dx, hidden, hidden, form());
    saved.dhidden = hidden;
  } else {
    gelu_backward(ctx, gradient.dx, hidden, gradient.dx, form());
    saved.dhidden = gradient.dx;
    if (!kept) {
      gelu_forward(ctx, hidden, hidden, form());
      saved.activated = hidden;
    }
  }
}

Tensor Mlp::backward_input(Context& ctx, const Tensor& dy, Saved& saved) const {
  backward_to_hidden(ctx, dy, saved);
  return up.backward_input(ctx, saved.dhidden);
}

void Mlp::backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const {
  PendingRegionOp all = up.gather(ctx, x);
  down.backward_weight(ctx, saved.activated, saved.dy_all);
  up.backward_weight(ctx, std::move(all), saved.dhidden);
}

void Mlp::add_sample_squares(Context& ctx, const Tensor& x, const Saved& saved, SampleSquares& squares) const {
  PendingRegionOp all = up.gather(ctx, x);
  down.add_sample_squares(ctx, saved.activated, saved.dy_all, squares);
  up.add_sample_squares(ctx, std::move(all), saved.dhidden, squares);
}

void Mlp::scale_samples(Context& ctx, int64_t sequence, const Tensor& factors, const Saved& saved) const {
  for (const Tensor& gradient : {saved.dy_all, saved.dhidden}) scale_sample_rows(ctx, gradient, sequence, 0, factors);
  clear_sample_rows(ctx, saved.activated, sequence, 0, factors);
}

Tensor Mlp::backward(Context& ctx, const Tensor& x, const Tensor& dy, Saved& saved) const {
  backward_to_hidden(ctx, dy, saved);
  PendingRegionOp dx = up.backward(ctx, x, saved.dhidden);
  down.backward_weight(ctx, saved.activated, saved.dy_all);
  return dx.wait(ctx);
}

}  // namespace trireme
