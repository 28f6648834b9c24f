#include "trainer/run/anomaly_window.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/run/median.h"

namespace trireme {
namespace {

constexpr size_t kNewest = 8;             ///< steps whose median follows a trend
constexpr double kNormalSpread = 1.4826;  ///< standard deviation of a normal distribution, in median absolute deviations
constexpr double kLossFloor = 0.05;       ///< of the spread of the logarithm: at the default z a factor of 1.35
constexpr double kGradientFloor = 0.3;    ///< a factor of 6: norms of few tokens vary by two or three

/// The limit that follows from values, which are positive.
double limit_of(std::vector<double> values, double z, double floor) {
  std::vector<double>& logarithms = values;
  for (double& value : logarithms) value = std::log(value);
  std::vector<double> newest(logarithms.end() - static_cast<ptrdiff_t>(std::min(kNewest, logarithms.size())), logarithms.end());
  const double level = median(newest), center = median(logarithms);
  for (double& value : logarithms) value = std::abs(value - center);
  const double spread = std::max(kNormalSpread * median(logarithms), floor);
  return std::exp(std::max(center + z * spread, level + z * floor));
}

bool has_logarithm(double value) { return std::isfinite(value) && value > 0; }

/// Adds the newest value to a window, which drops its oldest one if it is full.
template <class T>
void push(std::vector<T>& values, const T& newest, int64_t window) {
  if (values.size() == static_cast<size_t>(window)) values.erase(values.begin());
  values.push_back(newest);
}

}  // namespace

AnomalyWindow::AnomalyWindow(const AnomalyConfig& config, std::vector<StepFigures> state) : config_(config), window_(std::move(state)) {
  const auto most = static_cast<size_t>(config_.window);
  if (window_.size() > most) window_.erase(window_.begin(), window_.end() - static_cast<ptrdiff_t>(most));
}

StepLimits AnomalyWindow::limits() const {
  StepLimits limits;
  limits.finite_loss = config_.policy != AnomalyPolicy::kWarn;
  if (window_.size() < static_cast<size_t>(config_.window)) return limits;
  std::vector<double> losses, norms;
  for (const StepFigures& step : window_) {
    losses.push_back(step.loss);
    norms.push_back(step.grad_norm);
  }
  limits.loss = limit_of(std::move(losses), config_.z, kLossFloor);
  limits.grad_norm = limit_of(std::move(norms), config_.z, kGradientFloor);
  return limits;
}

void AnomalyWindow::add(const StepResult& result) {
  if (!result.accepted || result.targets == 0 || !has_logarithm(result.loss) || !has_logarithm(result.grad_norm)) return;
  push(window_, StepFigures{result.loss, result.grad_norm}, config_.window);
}

StepLimits RankWindow::add_to(StepLimits limits) const {
  limits.reject_outliers = config_.policy == AnomalyPolicy::kRerun;
  if (losses_.size() == static_cast<size_t>(config_.window))
    limits.rank_loss = std::max(limit_of(losses_, config_.z, kLossFloor), std::ranges::max(losses_) * std::exp(config_.z * kLossFloor));
  return limits;
}

void RankWindow::add(const StepResult& result) {
  const double loss = result.local_loss / static_cast<double>(std::max<int64_t>(result.local_targets, 1));
  if (!result.accepted || !has_logarithm(loss)) return;
  push(losses_, loss, config_.window);
}

Anomaly anomaly_in(const StepResult& result, const StepLimits& limits) {
  if (result.overflow) return {};
  Anomaly anomaly{!std::isfinite(result.loss) || result.loss > limits.loss, !std::isfinite(result.grad_norm) || result.grad_norm > limits.grad_norm,
                  result.outliers > 0};
  if (!limits.finite_loss) return anomaly;
  if (result.accepted) return {.ranks = anomaly.ranks};
  // The device compares sums of losses, which are rounded otherwise than means.
  if (!anomaly || (anomaly.only_ranks() && !limits.reject_outliers)) anomaly.loss = true;
  return anomaly;
}

std::string text_of(const Anomaly& anomaly, const StepResult& result, const StepLimits& limits) {
  const auto part = [](const char* name, double value, double limit) {
    return std::isfinite(value) ? concat(name, " ", value, " is above ", limit) : concat(name, " is not finite");
  };
  std::string text;
  if (anomaly.loss) text = part("the loss", result.loss, limits.loss);
  if (anomaly.grad_norm) text += (text.empty() ? "" : " and ") + part("the gradient norm", result.grad_norm, limits.grad_norm);
  if (anomaly.ranks)
    text += (text.empty() ? "" : " and ") +
            counted(result.outliers, "rank stands out from its own earlier steps", "ranks stand out from their own earlier steps");
  return text;
}

}  // namespace trireme
