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

/// Judges the mean loss of one rank's samples by its own accepted steps before. The loss of a rank moves more from step to step than that of all ranks,
/// and its window says by how much; a fault of one of n ranks changes its own loss by n times as much as that of the step. Few samples can be of a rare
/// kind, so the limit is that of AnomalyWindow, or exp(z floor) times the largest loss of the window if that is higher. Different on every rank. It is empty after every start: no step is dropped because of it unless hardware is at fault. The norm of a rank's
/// gradients is not judged: what a rank owns of them is a sum over all data ranks.
class RankWindow {
 public:
  RankWindow() = default;
  explicit RankWindow(const AnomalyConfig& config) : config_(config) {}

  /// Adds rank_loss, infinite until the window is full, and under the policy rerun reject_outliers to `limits`.
  StepLimits add_to(StepLimits limits) const;
  /// Adds an accepted step in which this rank has a loss (Trainer::counts_loss) and targets.
  void add(const StepResult& result);

 private:
  AnomalyConfig config_;
  std::vector<double> losses_;  ///< oldest first
};

/// What is anomalous in a step.
struct Anomaly {
  bool loss = false;       ///< above its limit, or not finite
  bool grad_norm = false;  ///< likewise
  bool ranks = false;      ///< some rank stands out from its own earlier steps

  bool only_ranks() const { return ranks && !loss && !grad_norm; }
  explicit operator bool() const { return loss || grad_norm || ranks; }
};
/// With limits.finite_loss the device has judged the step, and the step is anomalous if it was rejected. An overflow of the loss scale is none: it is
/// expected, and lowers the scale.
Anomaly anomaly_in(const StepResult& result, const StepLimits& limits);
/// "the loss 8.25 is above 3.5 and the gradient norm is not finite", or "2 ranks stand out from their own earlier steps".
std::string text_of(const Anomaly& anomaly, const StepResult& result, const StepLimits& limits);

}  // namespace trireme
