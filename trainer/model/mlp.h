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
  Tensor backward_input(Context& ctx, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;

 private:
  Tensor activate(Context& ctx, const Tensor& hidden) const;  ///< SwiGLU
  /// saved.activated and saved.dhidden from saved.hidden, in place of it and of `dactivated` where the shapes allow.
  void backward_activation(Context& ctx, const Tensor& dactivated, Saved& saved) const;
};

}  // namespace trireme
