#include "trainer/loop/step_scalars.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/ops/elementwise.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/machine/collectively.h"

namespace trireme {
namespace {

/// Scalars that the host reads after a step. The last two only with dynamic loss scaling.
struct Readback {
  enum Place : size_t {
    kLossSum,
    kGradNorm,
    kAcceptedFlag,
    kOffender,
    kOutlierCount,
    kLocalLoss,
    kLocalSquares,
    kStandsOut,
    kNextLossScale,
    kNextCleanSteps,
    kCount
  };
};

}  // namespace

bool scales_loss(const TrainingConfig& training) { return training.precision == Arithmetic::kFp16; }

StepScalars::StepScalars(Context& ctx, const Config& config, Mesh& mesh, const Stages& stages, bool for_training)
    : ctx_(ctx), mesh_(mesh), stages_(stages), training_(config.training), layer_gradients_(config.model) {
  sums_ = Tensor::zeros(ctx, {kStepSums}, DType::kF64, MemoryCategory::kWorkspace);
  norm_ = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  local_sums_ = Tensor::zeros(ctx, {kStepSums}, DType::kF64, MemoryCategory::kWorkspace);
  scalars_ = Tensor::zeros(ctx, {kStepScalars}, DType::kF64, MemoryCategory::kWorkspace);
  fill(ctx, std::numeric_limits<double>::infinity(), scalars_.flat(kNormLimit, kStepScalars - kNormLimit));
  if (!for_training) return;
  hyper_ = optimizer_options(training_).hyper;
  offender_ = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  std::vector<NamedGradient> owned;
  for (const auto& stage : stages)
    for (NamedGradient& one : owned_gradients(stage->params().units(), stage->grads())) owned.push_back(std::move(one));
  std::ranges::sort(owned, {}, &NamedGradient::name);
  for (const NamedGradient& one : owned) {
    gradient_names_.push_back(one.name);
    gradients_.push_back(one.gradient);
  }
  const LossScaleConfig& scale = training_.loss_scale;
  if (scales_loss(training_)) {
    scaling_ = {scale.growth_interval, static_cast<double>(scale.minimum), static_cast<double>(scale.maximum)};
    loss_scale_.scale = scale.initial;
  }
  set_loss_scale(loss_scale_);
}

void StepScalars::set_limits(const StepLimits& limits, double learning_rate, const BatchFigures& batch) {
  write_scalar(ctx_, learning_rate, scalars_.flat(kLearningRate, 1));
  write_scalar(ctx_, limits.grad_norm, scalars_.flat(kNormLimit, 1));
  write_scalar(ctx_, limits.rank_loss * static_cast<double>(std::max<int64_t>(batch.local_targets, 1)), scalars_.flat(kRankLossLimit, 1));
  write_scalar(ctx_, limits.reject_outliers ? 0 : std::numeric_limits<double>::infinity(), scalars_.flat(kOutlierLimit, 1));
  const double loss_limit = limits.loss * static_cast<double>(std::max<int64_t>(batch.targets, 1));
  write_scalar(ctx_, limits.finite_loss ? std::min(loss_limit, std::numeric_limits<double>::max()) : loss_limit, scalars_.flat(kLossLimit, 1));
}

void StepScalars::norm(bool counts_shard, const Tensor& loss) {
  fill(ctx_, 0, sums_);
  NamedSquares squares;
  NamedSquares* const each = ctx_.device == Device::kCuda ? nullptr : &squares;
  for (const auto& stage : stages_)
    if (counts_shard) add_gradient_squares(ctx_, stage->params().units(), stage->grads(), sums_.flat(kSquares, 1), each);
  if (each != nullptr) layer_gradients_.set(std::move(squares));
  if (loss.defined()) copy(ctx_, loss, sums_.flat(kLosses, 1));
  mark_outlier(ctx_, scalars_, sums_);
  copy(ctx_, sums_, local_sums_);
  mesh_.step.all_reduce(ctx_, sums_, ReduceOp::kSum).wait(ctx_);

  finalize_step_scalars(ctx_, hyper_, scaling_, sums_, training_.gradient_clip, norm_, scalars_);
  first_non_finite(ctx_, gradients_, scalars_, offender_);
}

ScalarReadback StepScalars::read_back() const {
  std::vector<Tensor> results(scales_loss(training_) ? Readback::kCount : Readback::kNextLossScale);
  results[Readback::kLossSum] = sums_.flat(kLosses, 1);
  results[Readback::kGradNorm] = norm_;
  results[Readback::kAcceptedFlag] = scalars_.flat(kAccepted, 1);
  results[Readback::kOffender] = offender_;
  results[Readback::kOutlierCount] = sums_.flat(kOutliers, 1);
  results[Readback::kLocalLoss] = local_sums_.flat(kLosses, 1);
  results[Readback::kLocalSquares] = local_sums_.flat(kSquares, 1);
  results[Readback::kStandsOut] = local_sums_.flat(kOutliers, 1);
  if (scales_loss(training_)) {
    results[Readback::kNextLossScale] = scalars_.flat(kLossScale, 1);
    results[Readback::kNextCleanSteps] = scalars_.flat(kCleanSteps, 1);
  }
  return ScalarReadback(ctx_, results);
}

StepResult StepScalars::read(const ScalarReadback& outcome, int64_t step, double loss_factor) {
  const std::vector<double> values = outcome.wait();
  const bool computes = ctx_.device != Device::kMeta;
  if (computes) {
    std::vector<double> shared = {values[Readback::kLossSum], values[Readback::kGradNorm], values[Readback::kAcceptedFlag],
                                  values[Readback::kOutlierCount]};
    if (scales_loss(training_)) shared.insert(shared.end(), {values[Readback::kNextLossScale], values[Readback::kNextCleanSteps]});
    try {
      check_same_result(mesh_.step, concat("step ", step + 1), shared);
    } catch (const AgreedError& error) {
      if (mesh_.shape.islands == 1) throw;
      throw InternalError(concat("island ", mesh_.at.island, ": ", error.what()));  // the other islands do not know of it, so the job is aborted
    }
  }
  StepResult result;
  result.loss = values[Readback::kLossSum] * loss_factor;
  result.grad_norm = values[Readback::kGradNorm];
  result.local_loss = values[Readback::kLocalLoss];
  result.local_squares = values[Readback::kLocalSquares];
  result.stands_out = values[Readback::kStandsOut] != 0;
  result.outliers = static_cast<int64_t>(values[Readback::kOutlierCount]);
  result.accepted = !computes || values[Readback::kAcceptedFlag] != 0;
  if (result.accepted) {
    ++accepted_steps_;
  } else {
    result.offender = offender_name(static_cast<int64_t>(values[Readback::kOffender]));
    result.over_limit = std::isfinite(result.grad_norm);
  }
  if (!scales_loss(training_) || !computes) return result;
  used_scale_ = static_cast<double>(loss_scale_.scale);
  const LossScale next{static_cast<int64_t>(values[Readback::kNextLossScale]), static_cast<int64_t>(values[Readback::kNextCleanSteps])};
  result.loss_scale = std::exchange(loss_scale_, next).scale;
  // The loss is not scaled: if it is not finite itself, a smaller scale does not help.
  result.overflow = !result.accepted && std::isfinite(result.loss) && loss_scale_.scale < *result.loss_scale;
  return result;
}

void StepScalars::set_accepted_steps(int64_t steps) {
  accepted_steps_ = steps;
  fill(ctx_, static_cast<double>(steps), scalars_.flat(kAcceptedSteps, 1));
}

void StepScalars::set_loss_scale(const LossScale& loss_scale) {
  loss_scale_ = loss_scale;
  fill(ctx_, static_cast<double>(loss_scale.scale), scalars_.flat(kLossScale, 1));
  fill(ctx_, static_cast<double>(loss_scale.clean_steps), scalars_.flat(kCleanSteps, 1));
}

std::string StepScalars::offender_name(int64_t index) {
  std::string first;
  for (const std::string& name : all_gather_strings(mesh_.step, index < 0 ? "" : gradient_names_[static_cast<size_t>(index)])) {
    if (!name.empty() && (first.empty() || name < first)) first = name;
  }
  return first;
}

}  // namespace trireme
