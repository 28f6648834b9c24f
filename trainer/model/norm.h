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
  /// sum = a + b and its normalisation, in one pass where the device can.
  Tensor forward_of_sum(Context& ctx, const Tensor& a, const Tensor& b, Tensor& sum, Saved& saved) const;
  /// The result of forward again, from the same x: cheaper than to keep it from forward to backward.
  Tensor forward_again(Context& ctx, const Tensor& x, const Saved& saved) const;
  /// `residual`: the gradient of x that flows past the norm, added to the result; may be undefined.
  Tensor backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& residual, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;

 private:
  void prepare(Context& ctx, const Tensor& x, Saved& saved) const;  ///< room for the statistics
};

}  // namespace trireme
