#pragma once
#include "parallel/param.h"

namespace trireme {

/// RMSNorm (LLaMA) or LayerNorm (GPT-2, when it has a bias) of the residual stream.   x, y [M',D].
struct Norm {
  Param* weight;
  Param* bias;  ///< null: RMSNorm
  double epsilon;

  struct Saved {
    Tensor mean, rstd;  ///< [M']; mean only for LayerNorm
    Tensor dy;          ///< kept from backward_input for backward_weight
  };
  Tensor forward(Context& ctx, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Tensor& dy, const Tensor& x, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;
};

}  // namespace trireme
