#include "trainer/sweep/range_test.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"
#include "trainer/plan/text.h"

namespace trireme::sweep {
namespace {

/// `memory`: number of steps after which a value has lost two thirds of its weight. A value that is not finite ends the average.
std::vector<double> smooth(const std::vector<double>& values, double memory) {
  const double keep = 1 - 1 / std::max(1.0, memory);
  std::vector<double> means;
  double sum = 0, weight = 0;
  for (const double value : values) {
    sum = keep * sum + (1 - keep) * value;
    weight = keep * weight + (1 - keep);
    means.push_back(sum / weight);
  }
  return means;
}

/// Index of the first value that is not finite, or more than twice the lowest before it.
size_t end_of_training(const std::vector<double>& smoothed) {
  double lowest = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < smoothed.size(); ++i) {
    if (!(smoothed[i] <= 2 * lowest) && i > 0) return i;
    lowest = std::min(lowest, smoothed[i]);
  }
  return smoothed.size();
}

std::string suggestion_text(const RangeTestResult& result) {
  if (!result.suggested) return "The smoothed loss never falls, so no learning rate is suggested: try lower rates or more steps.";
  return concat("Suggested learning rate ", print("%.2g", *result.suggested), ": there the smoothed loss falls fastest. It is lowest at ",
                print("%.2g", *result.lowest), "; a run that is meant to last needs less than that.");
}

}  // namespace

RangeTestResult range_test_result(const report::RunRecord& run, const SweepRangeTest& test) {
  RangeTestResult result;
  const auto total = static_cast<double>(test.steps.value());
  const auto losses = run.steps[report::Figure::kLoss];
  for (size_t i = 0; i < run.steps.size(); ++i) {
    result.rate.push_back(*test.from * std::pow(*test.to / *test.from, static_cast<double>(run.steps.step[i]) / total));
    result.loss.push_back(losses[i]);
  }
  result.smoothed = smooth(result.loss, total / 25);
  const size_t end = end_of_training(result.smoothed), width = std::max<size_t>(1, static_cast<size_t>(total / 25));
  double steepest = 0;
  for (size_t i = std::max(width, static_cast<size_t>(total / 10)); i + width < end; ++i) {
    const double slope = result.smoothed[i + width] - result.smoothed[i - width];  // the rates of all steps have the same factor
    if (slope >= steepest) continue;
    steepest = slope;
    result.suggested = result.rate[i];
  }
  if (end > 0)
    result.lowest = result.rate[static_cast<size_t>(
        std::min_element(result.smoothed.begin(), result.smoothed.begin() + static_cast<std::ptrdiff_t>(end)) - result.smoothed.begin())];
  result.text = suggestion_text(result);
  return result;
}

}  // namespace trireme::sweep
