#include "trainer/loop/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/core/check.h"

namespace trireme {
namespace {

double batch_factor(const OptimizerConfig& optimizer, int64_t global_batch) {
  if (optimizer.learning_rate_scaling == BatchScaling::kNone) return 1;
  TRIREME_CHECK(optimizer.reference_batch_size.value_or(0) > 0, "learning_rate_scaling ", optimizer.learning_rate_scaling,
                " without a reference batch");
  const double ratio = static_cast<double>(global_batch) / static_cast<double>(*optimizer.reference_batch_size);
  if (optimizer.learning_rate_scaling == BatchScaling::kLinear) return ratio;
  TRIREME_CHECK(optimizer.learning_rate_scaling == BatchScaling::kSqrt, "learning_rate_scaling ", optimizer.learning_rate_scaling);
  return std::sqrt(ratio);
}

/// Progress of the decay after the warmup, 0 to 1. With final_learning_rate auto the last step, whose rate would be 0, has the progress of a decay that
/// ends one step later, so that it trains too; no other step differs from one with final_learning_rate 0.
double decay_progress(const ScheduleConfig& schedule, int64_t step, int64_t total_steps) {
  int64_t length = total_steps - schedule.warmup_steps;
  if (schedule.name == LearningRateSchedule::kWsd) length = std::min(length, schedule.decay_steps.value_or(std::max<int64_t>(1, total_steps / 10)));
  const int64_t begin = total_steps - length;
  if (step <= begin) return 0;
  const bool trains_still = !schedule.final_learning_rate && step == total_steps;
  return std::min(1.0, static_cast<double>(step - begin) / static_cast<double>(trains_still ? length + 1 : length));
}

}  // namespace

double learning_rate(const ScheduleConfig& schedule, const OptimizerConfig& optimizer, int64_t global_batch, int64_t step, int64_t total_steps) {
  const double factor = batch_factor(optimizer, global_batch);
  const double peak = factor * optimizer.learning_rate;
  if (step <= schedule.warmup_steps) return peak * static_cast<double>(step) / static_cast<double>(schedule.warmup_steps);
  if (schedule.name == LearningRateSchedule::kConstant) return peak;
  const double final_rate = factor * schedule.final_learning_rate.value_or(0);
  const double progress = decay_progress(schedule, step, total_steps);
  if (schedule.name == LearningRateSchedule::kCosine) return final_rate + (peak - final_rate) * 0.5 * (1 + std::cos(std::numbers::pi * progress));
  if (schedule.name == LearningRateSchedule::kExponential) return peak * std::pow(final_rate / peak, progress);
  TRIREME_CHECK(schedule.name == LearningRateSchedule::kLinear || schedule.name == LearningRateSchedule::kWsd, "schedule ", schedule.name);
  return peak + (final_rate - peak) * progress;
}

}  // namespace trireme
