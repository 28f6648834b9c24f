#pragma once
#include <span>

#include "kernels/core/tensor.h"

namespace trireme {

/// What the optimizer reads on the device, so that no host decision stands between backward and update: one f64 tensor [kStepScalars].
enum StepScalar : int {
  kGradScale = 0,  ///< factor on every gradient: the clip factor / the loss scale
  kFinite = 1,     ///< 1 if the step is accepted, 0 if rejected: then nothing is written
  kLearningRate = 2,
  kBiasCorrection1 = 3,  ///< 1 - beta1^t
  kBiasCorrection2 = 4,  ///< 1 - beta2^t
  kAcceptedSteps = 5,    ///< t: steps accepted so far, this one included
  kLossScale = 6,        ///< factor on the gradient of the loss, of the step to come
  kCleanSteps = 7,       ///< accepted in a row since the loss scale last changed, or was to
  kStepScalars = 8,
};

struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
};

/// Dynamic loss scaling. Gradients too small for fp16 are kept from zero by a factor on the loss, all steps of which are exact: it is a power of two.
/// `growth_interval` accepted steps in a row double it, a rejected one halves it, within [minimum, maximum]. By default it is 1 for ever.
/// Source: Micikevicius et al. 2018, arXiv:1710.03740.
struct LossScaling {
  int64_t growth_interval = 1;
  double minimum = 1;
  double maximum = 1;
};
/// Where it stands between steps: scalars[kLossScale], scalars[kCleanSteps].
struct LossScale {
  int64_t scale = 1;
  int64_t clean_steps = 0;
  bool operator==(const LossScale&) const = default;
};

/// factor[0] (f64) *= scalars[kLossScale].
void scale_loss(Context& ctx, const Tensor& scalars, const Tensor& factor);

/// Decides about a step on the device. `sum_sq` is of gradients that carry the loss scale S = scalars[kLossScale]: norm[0] = sqrt(sum_sq[0]) / S;
/// scalars[kFinite] = norm finite (a NaN is not, and never passes a comparison); scalars[kGradScale] = min(1, clip / norm) / S (1 / S where clip = 0); of an
/// accepted step scalars[kAcceptedSteps] += 1; both bias corrections follow from it; then S and scalars[kCleanSteps] become those of the next step.
/// sum_sq, norm [1] f64; kLearningRate is the caller's, as are kAcceptedSteps, kLossScale and kCleanSteps of the first step.
void finalize_step_scalars(Context& ctx, const AdamW& hyper, const LossScaling& scaling, const Tensor& sum_sq, double clip, const Tensor& norm,
                           const Tensor& scalars);

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
