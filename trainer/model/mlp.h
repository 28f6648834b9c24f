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
    Tensor hidden;           ///< [M,2F] or [M,F], before the activation
    Tensor activated;        ///< [M,F]
    Tensor dhidden, dy_all;  ///< kept from backward_input for backward_weight
  };
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;
};

}  // namespace trireme
