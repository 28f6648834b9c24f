#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// What the optimizer reads on the device, so that no host decision stands between backward and update: one f64 tensor [kStepScalars].
enum StepScalar : int {
  kGradScale = 0,  ///< factor on every gradient (the clip factor)
  kFinite = 1,     ///< 1 if the step is accepted, 0 if rejected: then nothing is written
  kLearningRate = 2,
  kBiasCorrection1 = 3,  ///< 1 - beta1^t
  kBiasCorrection2 = 4,  ///< 1 - beta2^t
  kStepScalars = 5,
};

struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

/// Decoupled weight decay, as torch.optim.AdamW: w -= lr*decay*w; m, v updated with g*grad_scale; w -= lr * (m/c1) / (sqrt(v/c2) + epsilon).
/// w, g, m, v of equal size and dtype.   Source: Loshchilov & Hutter 2017, arXiv:1711.05101.
void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, const Tensor& w, const Tensor& g, const Tensor& m, const Tensor& v);

/// sum[0] (f64) += sum of x^2, accumulated in double in index order blocks that do not depend on the thread count.
void sum_of_squares(Context& ctx, const Tensor& x, const Tensor& sum);

/// scalars[kGradScale] = min(1, clip / norm) (1 where clip = 0), scalars[kFinite] = norm finite; norm = sqrt(sum_sq[0]) goes to norm[0].
/// A NaN norm is not finite and never passes the comparison.   sum_sq, norm [1] f64.
void clip_factor(Context& ctx, const Tensor& sum_sq, double clip, const Tensor& norm, const Tensor& scalars);

}  // namespace trireme
