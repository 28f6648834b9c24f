#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/checkpoint/manifest.h"
#include "trainer/config/config.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// Judges the loss and the gradient norm of a step by those of the accepted steps before it. The limit of a figure is
/// exp(m + z max(1.4826 d, floor)), where m is the median of its logarithms in the window and d their median absolute deviation from m; the factor
/// makes d the standard deviation of a normal distribution. Median and deviation ignore single outliers, and the floor keeps a window of almost equal
/// values from making a tiny change an anomaly. Where it is higher, the limit is that of the newest eight steps, exp(m' + z floor) with their median
/// m': a figure that grows within the window, as gradients do early in training, is not an anomaly. Equal on every rank. Under policies that reject
/// steps the window is part of the checkpoint, so that a resumed run decides as an undisturbed one.
class AnomalyWindow {
 public:
  AnomalyWindow() = default;
  /// `state`: of the checkpoint that the run resumes from; its newest entries are kept.
  AnomalyWindow(const AnomalyConfig& config, std::vector<StepFigures> state);

  /// Infinite until the window is full: the figures of the first steps change too fast to judge. Under policies that reject steps, a loss that is not
  /// finite is rejected from the first step on.
  StepLimits limits() const;
  /// Adds an accepted step. Steps without a target have no loss and are left out, as is a step whose gradient is zero.
  void add(const StepResult& result);
  /// Oldest first.
  const std::vector<StepFigures>& state() const { return window_; }
  double z() const { return config_.z; }

 private:
  AnomalyConfig config_;
  std::vector<StepFigures> window_;
};

/// Which figures of a step are anomalous.
struct Anomaly {
  bool loss = false;       ///< above its limit, or not finite
  bool grad_norm = false;  ///< likewise

  explicit operator bool() const { return loss || grad_norm; }
};
/// With limits.finite_loss the device has judged the step, and the step is anomalous if it was rejected. An overflow of the loss scale is none: it is
/// expected, and lowers the scale.
Anomaly anomaly_in(const StepResult& result, const StepLimits& limits);
/// "the loss 8.25 is above 3.5 and the gradient norm is not finite".
std::string text_of(const Anomaly& anomaly, const StepResult& result, const StepLimits& limits);

}  // namespace trireme
