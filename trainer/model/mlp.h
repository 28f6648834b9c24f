#pragma once
#include "parallel/tensor/linear.h"

namespace trireme {

/// SwiGLU (LLaMA: `up` stacks gate and up) or GELU (GPT-2): ColumnParallel up, activation, RowParallel down.
struct Mlp {
  ColumnParallelLinear up;
  RowParallelLinear down;
  bool gelu;
  int64_t ffn;  ///< F on this rank

  struct Saved {
    Tensor hidden;                      ///< [M,2F] or [M,F], before the activation
    Tensor activated, dhidden, dy_all;  ///< kept from backward_input for backward_weight; activated [M,F] is made again there
  };
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  /// What forward saves, again, by its own operations; the product `down` is left out.
  void recompute_forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;
  /// Both, with communication behind products.
  Tensor backward(Context& ctx, const Tensor& x, const Tensor& dy, Saved& saved) const;

 private:
  Tensor activate(Context& ctx, const Tensor& hidden) const;  ///< SwiGLU
  /// saved.activated, saved.dhidden and saved.dy_all.
  void backward_to_hidden(Context& ctx, const Tensor& dy, Saved& saved) const;
};

}  // namespace trireme
