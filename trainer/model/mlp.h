#pragma once
#include "kernels/core/gelu.h"
#include "parallel/tensor/linear.h"
#include "trainer/config/model_config.h"

namespace trireme {

/// ColumnParallel up, activation, RowParallel down. With a gate, `up` stacks gate and up: SwiGLU or GeGLU; else GELU.
struct Mlp {
  ColumnParallelLinear up;
  RowParallelLinear down;
  Activation activation;
  bool gated;
  int64_t ffn;  ///< F on this rank
  bool keeps_activated = false;

  struct Saved {
    Tensor hidden;           ///< [M,2F] or [M,F], before the activation
    Tensor activated;        ///< [M,F], kept from the forward or recomputed in backward_input
    Tensor dhidden, dy_all;  ///< kept from backward_input for backward_weight
  };
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  /// Recomputes what forward saves, with the same operations; skips the `down` product.
  void recompute_forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;
  void add_sample_squares(Context& ctx, const Tensor& x, const Saved& saved, SampleSquares& squares) const;
  /// Multiplies what backward_weight would add by each sample's factor.   factors [B] f64, of `sequence` rows each.
  void scale_samples(Context& ctx, int64_t sequence, const Tensor& factors, const Saved& saved) const;
  /// Fused backward_input + backward_weight, bit-identical to calling both; overlaps communication with matrix products.
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
