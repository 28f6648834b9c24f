#pragma once
#include <span>

#include "kernels/core/tensor.h"

namespace trireme {

/// What the optimizer reads on the device, so that no host decision stands between backward and update: one f64 tensor [kStepScalars].
enum StepScalar : int {
  kGradScale = 0,  ///< factor on every gradient (the clip factor)
  kFinite = 1,     ///< 1 if the step is accepted, 0 if rejected: then nothing is written
  kLearningRate = 2,
  kBiasCorrection1 = 3,  ///< 1 - beta1^t
  kBiasCorrection2 = 4,  ///< 1 - beta2^t
  kAcceptedSteps = 5,    ///< t: steps accepted so far, this one included
  kStepScalars = 6,
};

struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

/// Decides about a step on the device: norm[0] = sqrt(sum_sq[0]); scalars[kFinite] = norm finite (a NaN is not, and never passes a comparison);
/// scalars[kGradScale] = min(1, clip / norm) (1 where clip = 0); of an accepted step scalars[kAcceptedSteps] += 1; both bias corrections follow from it.
/// sum_sq, norm [1] f64; kAcceptedSteps and kLearningRate are the caller's.
void decide_step(Context& ctx, const AdamW& hyper, const Tensor& sum_sq, double clip, const Tensor& norm, const Tensor& scalars);

/// The slice of one parameter: weight, gradient and both moments, of equal size and dtype.
struct AdamWSlice {
  Tensor w, g, m, v;
  bool decay = false;
};
/// Decoupled weight decay, as torch.optim.AdamW: w -= lr*decay*w; m, v updated with g*grad_scale; w -= lr * (m/c1) / (sqrt(v/c2) + epsilon).
/// All slices of a unit in one launch on the GPU.   Source: Loshchilov & Hutter 2017, arXiv:1711.05101.
void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices);

/// index[0] (f64) := place of the first tensor whose sum of squares is not finite; -1 where there is none, and, without reading any, after an accepted
/// step: so that it can be queued before anyone knows.
void first_non_finite(Context& ctx, std::span<const Tensor> tensors, const Tensor& scalars, const Tensor& index);

/// sum[0] (f64) += sum of x^2 over all tensors, in double, in blocks whose order does not depend on the thread count.
void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum);

}  // namespace trireme
