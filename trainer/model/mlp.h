#pragma once
#include "kernels/core/gelu.h"
#include "trainer/config/model_config.h"
#include "trainer/model/weight_gradients.h"

namespace trireme {

/// Up, activation, down. With a gate, `up` stacks gate and up: SwiGLU or GeGLU; else GELU.
struct Mlp {
  Linear up;    ///< splits outputs
  Linear down;  ///< splits inputs
  Activation activation;
  bool gated;
  int64_t ffn;  ///< F on this rank
  bool keeps_activated = false;

  struct Saved {
    Tensor hidden;           ///< [M,2F] or [M,F], before the activation
    Tensor activated;        ///< [M,F], kept from the forward or recomputed in backward_input
    Tensor dhidden, dy_all;  ///< kept from backward_input for the weight gradients
  };
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  /// Recomputes what forward saves, with the same operations; skips the `down` product.
  void recompute_forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Tensor& dy, Saved& saved) const;
  WeightGradients weight_gradients(const Tensor& x, const Saved& saved) const;
  /// Fused backward_input and W, bit-identical to one after the other; overlaps communication with matrix products.
  Tensor backward(Context& ctx, const Tensor& x, const Tensor& dy, Saved& saved) const;

 private:
  Gelu form() const { return activation == Activation::kGelu ? Gelu::kErf : Gelu::kTanh; }
  /// saved.hidden and its activation, without gate.
  Tensor forward_gelu(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor activate(Context& ctx, const Tensor& hidden) const;  ///< with a gate
  /// Computes saved.dhidden, saved.dy_all and, unless it was kept, saved.activated.
  void backward_to_hidden(Context& ctx, const Tensor& dy, Saved& saved) const;
};

}  // namespace trireme
