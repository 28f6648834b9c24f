#pragma once
#include <limits>
#include <span>

#include "kernels/core/tensor.h"

namespace trireme {

/// Scalars of a step on the device, so that the update needs no decision of the host after the backward: one f64 tensor [kStepScalars].
enum StepScalar : int {
  kGradScale = 0,  ///< factor on every gradient: the clip factor / the loss scale
  kAccepted = 1,   ///< 1 if the step is accepted, 0 if rejected: then nothing is written
  kLearningRate = 2,
  kBiasCorrection1 = 3,  ///< 1 - beta1^t
  kBiasCorrection2 = 4,  ///< 1 - beta2^min(t, AdamW::second_moment_steps)
  kAcceptedSteps = 5,    ///< t: steps accepted so far, this one included
  kLossScale = 6,        ///< factor on the gradient of the loss, for the next step
  kCleanSteps = 7,       ///< consecutive accepted steps since the loss scale last changed or was held at a bound
  kNormLimit = 8,        ///< a larger gradient norm rejects the step; infinity: none
  kLossLimit = 9,        ///< a sum of losses that is larger or not finite rejects the step; infinity: the loss is not judged
  kRankLossLimit = 10,   ///< with a larger sum of the losses of its own samples this rank stands out; infinity: never
  kOutlierLimit = 11,    ///< more ranks that stand out reject the step; infinity: they do not
  kStepScalars = 12,
};

struct AdamW {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0;
  /// The second moment follows the gradients of this many accepted steps, and stays as it is after them.
  /// Source: Tang et al. 2021, arXiv:2102.02888 (1-bit Adam).
  double second_moment_steps = std::numeric_limits<double>::infinity();
};
/// beta2 of the step that `scalars` describes: 1 once the second moment stays as it is.
constexpr double current_beta2(const AdamW& hyper, const double* scalars) {
  return scalars[kAcceptedSteps] > hyper.second_moment_steps ? 1 : hyper.beta2;
}

/// Dynamic loss scaling: a factor on the loss keeps small fp16 gradients from underflow. It is a power of two, so scaling is exact. `growth_interval`
/// consecutive accepted steps double it, and a rejected step halves it, within [minimum, maximum]. The default is a constant 1.
/// Source: Micikevicius et al. 2018, arXiv:1710.03740.
struct LossScaling {
  int64_t growth_interval = 1;
  double minimum = 1;
  double maximum = 1;
};
/// State of the loss scaling between steps: scalars[kLossScale], scalars[kCleanSteps].
struct LossScale {
  int64_t scale = 1;
  int64_t clean_steps = 0;
  bool operator==(const LossScale&) const = default;
};

/// factor[0] (f64) *= scalars[kLossScale].
void scale_loss(Context& ctx, const Tensor& scalars, const Tensor& factor);

/// The sums that decide on a step: one f64 tensor [kStepSums], first of a rank, then of all ranks.
enum StepSum : int {
  kSquares = 0,   ///< sum of squares of the gradients, which include the loss scale
  kLosses = 1,    ///< sum of the losses of the valid tokens, nats
  kOutliers = 2,  ///< number of ranks whose losses stand out from their own earlier steps
  kStepSums = 3,
};

/// sums[kOutliers] = 1 if the losses of this rank are above scalars[kRankLossLimit], else 0; not-a-number is not above a limit.
/// sums [kStepSums] f64, of this rank.
void mark_outlier(Context& ctx, const Tensor& scalars, const Tensor& sums);

/// Accepts or rejects a step, on the device, by the `sums` of all ranks, with the loss scale S = scalars[kLossScale]. Sets
/// norm[0] = sqrt(sums[kSquares]) / S; scalars[kAccepted] = 1 if norm is finite and no limit rejects norm, loss or number of outliers;
/// scalars[kGradScale] = min(1, clip / norm) / S (1 / S if clip = 0); for an accepted step scalars[kAcceptedSteps] += 1; the bias corrections of that
/// count; then S and scalars[kCleanSteps] for the next step, which a step rejected by a limit does not change.
/// sums [kStepSums], norm [1] f64. The caller sets kLearningRate and, before the first step, kAcceptedSteps, kLossScale, kCleanSteps and all limits.
void finalize_step_scalars(Context& ctx, const AdamW& hyper, const LossScaling& scaling, const Tensor& sums, double clip, const Tensor& norm,
                           const Tensor& scalars);

/// The slice of one parameter: weight, gradient and both moments, of equal size and dtype.
struct AdamWSlice {
  Tensor w, g, m, v;
  bool decay = false;
};
/// AdamW with decoupled weight decay, as in torch.optim.AdamW: w -= lr*decay*w; m, v updated with g*grad_scale; w -= lr * (m/c1) / (sqrt(v/c2) +
/// epsilon). On the GPU, one launch for all slices of a unit.   Source: Loshchilov & Hutter 2017, arXiv:1711.05101.
void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices);

/// index[0] (f64) := index of the first tensor whose sum of squares is not finite, or -1 if there is none. After an accepted step it is -1 without a
/// read of the tensors, so that the operation can be queued before the host knows the outcome.
void first_non_finite(Context& ctx, std::span<const Tensor> tensors, const Tensor& scalars, const Tensor& index);

/// sum[0] (f64) += sum of x^2 over all tensors, in double, in blocks whose order does not depend on the thread count. `each`, if given, is
/// [tensors.size()] and set to the sum of each tensor; only on CPUs, where these sums are made anyway.
void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum, std::span<double> each = {});

}  // namespace trireme
