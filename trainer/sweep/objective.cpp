#include "trainer/sweep/objective.h"

#include <cmath>
#include <numeric>

#include "kernels/core/check.h"

namespace trireme::sweep {
namespace {

report::Figure figure_of(SweepMetric metric) {
  switch (metric) {
    case SweepMetric::kTokensPerSecond: return report::Figure::kTokensPerSecond;
    case SweepMetric::kStepSeconds: return report::Figure::kStepSeconds;
    default: return report::Figure::kLoss;
  }
}

/// The values up to `until` with their steps, in order.
std::vector<Score> values_of(const report::RunRecord& run, SweepMetric metric, int64_t until) {
  std::vector<Score> values;
  if (metric == SweepMetric::kValidationLoss) {
    for (const report::EvaluationRecord& one : run.evaluations)
      if (one.step <= until) values.push_back({one.loss, one.step});
    return values;
  }
  const auto figures = run.steps[figure_of(metric)];
  for (size_t i = 0; i < run.steps.size(); ++i)
    if (run.steps.step[i] <= until) values.push_back({figures[i], run.steps.step[i]});
  return values;
}

/// Means of each `count` consecutive values; of all of them if there are fewer.
std::vector<Score> averaged(const std::vector<Score>& values, size_t count) {
  std::vector<Score> means;
  if (values.empty()) return means;
  count = std::min(count, values.size());
  const auto add = [](double sum, const Score& one) { return sum + one.value; };
  for (size_t end = count; end <= values.size(); ++end) {
    const auto last = values.begin() + static_cast<std::ptrdiff_t>(end);
    means.push_back({std::accumulate(last - static_cast<std::ptrdiff_t>(count), last, 0.0, add) / static_cast<double>(count), values[end - 1].step});
  }
  return means;
}

bool exceeds(double a, double b, const SweepObjective& objective) { return objective.goal == SweepGoal::kMinimise ? a < b : a > b; }

}  // namespace

std::optional<Score> score_of(const report::RunRecord& run, const SweepObjective& objective, int64_t until) {
  const std::vector<Score> means = averaged(values_of(run, objective.metric.value(), until), static_cast<size_t>(objective.average));
  std::optional<Score> found;
  if (objective.take == SweepTake::kLast) {
    if (!means.empty() && std::isfinite(means.back().value)) found = means.back();
    return found;
  }
  for (const Score& one : means)
    if (std::isfinite(one.value) && (!found || exceeds(one.value, found->value, objective))) found = one;
  return found;
}

bool is_better(const std::optional<Score>& a, const std::optional<Score>& b, const SweepObjective& objective) {
  if (!a || !b) return a.has_value();
  return exceeds(a->value, b->value, objective);
}

std::string objective_text(const SweepObjective& objective) {
  const std::string mean = objective.average > 1 ? concat("mean of ", objective.average, " ") : "";
  return concat(objective.take == SweepTake::kBest ? "best " : "", mean, objective.metric.text());
}

}  // namespace trireme::sweep
