// The plots of the report of a sweep.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "kernels/core/check.h"
#include "trainer/config/bind.h"
#include "trainer/report/series.h"
#include "trainer/sweep/page.h"

namespace trireme::sweep {
namespace {

using report::Curve;
using report::Plot;
using report::Quantity;

constexpr size_t kBestColor = 1, kGoodColor = 0, kOtherColor = 6;
constexpr size_t kMostReadable = 8;  ///< curves whose values are shown at the cursor

/// Low and high of all finite values.
struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

/// Divergence of one point must not flatten the others: the upper end is at most three times the range of their first and last values.
double upper_end(std::vector<double> values, double low) {
  if (values.empty()) return 1;
  std::ranges::sort(values);
  const double most = values[values.size() * 95 / 100];
  return std::min(values.back(), low + 1.5 * std::max(most - low, 1e-12));
}

/// A validation curve where there are evaluations, otherwise the training loss, in at most 200 bins.
Curve loss_curve(const report::RunRecord& record, bool validation) {
  constexpr size_t kMostBins = 200;
  Curve curve;
  if (validation) {
    for (const report::EvaluationRecord& one : record.evaluations) {
      curve.x.push_back(static_cast<double>(one.step));
      curve.y.push_back(one.loss);
    }
    return curve;
  }
  const std::vector<report::Bin> bins = report::bins_of(record.steps.size(), kMostBins);
  const std::vector<double> steps(record.steps.step.begin(), record.steps.step.end());
  curve.x = report::middles_of(steps, bins);
  curve.y = report::envelope_of(record.steps[report::Figure::kLoss], bins).mean;
  return curve;
}

void place_axes(Plot& plot, bool log_x) {
  Range x, y;
  std::vector<double> values;
  for (const Curve& curve : plot.curves) {
    for (const double value : curve.x) x.add(value);
    for (const double value : curve.y) {
      y.add(value);
      if (std::isfinite(value)) values.push_back(value);
    }
  }
  plot.x = report::fitted_axis(plot.x.label, plot.x.quantity, x.low, x.high, log_x);
  plot.y = report::fitted_axis(plot.y.label, plot.y.quantity, y.low, upper_end(values, y.low));
}

}  // namespace

std::optional<Plot> losses_plot(const Results& results, std::span<const report::RunRecord> records) {
  const bool validation = results.file->config.objective.metric == SweepMetric::kValidationLoss &&
                          std::ranges::any_of(records, [](const report::RunRecord& one) { return one.evaluations.size() > 1; });
  Plot plot{.title = validation ? "Validation loss of all points" : "Training loss of all points"};
  plot.x = {.label = "steps", .quantity = Quantity::kCount};
  plot.y.label = "nats";
  const size_t good = (results.rows.size() + 3) / 4;
  for (size_t i = results.rows.size(); i-- > 0;) {  // the best one is drawn last
    Curve curve = loss_curve(records[i], validation);
    if (curve.x.empty()) continue;
    const bool scored = results.rows[i].standing.score.has_value();
    curve.name = concat("point ", results.rows[i].run->point.index, ": ", label_of(results.rows[i].run->point));
    curve.color = i == 0 && scored ? kBestColor : i < good && scored ? kGoodColor : kOtherColor;
    curve.run = i;
    curve.dots = validation && curve.x.size() <= 12;
    curve.readable = i < kMostReadable;
    plot.curves.push_back(std::move(curve));
  }
  if (plot.curves.empty()) return std::nullopt;
  place_axes(plot, false);
  return plot;
}

std::optional<Plot> axis_plot(const Results& results, size_t axis) {
  const Axis& of = results.file->axes[axis];
  std::vector<std::pair<double, double>> points;
  std::map<double, double> best;
  for (const ResultRow& row : results.rows) {
    const std::optional<double> value = decimal_number(row.run->point.settings[axis].value);
    if (!value) return std::nullopt;
    if (!row.standing.score) continue;
    const double score = row.standing.score->value;
    points.emplace_back(*value, score);
    const auto [found, fresh] = best.emplace(*value, score);
    if (!fresh)
      found->second = results.file->config.objective.goal == SweepGoal::kMinimise ? std::min(found->second, score) : std::max(found->second, score);
  }
  if (best.size() < 2) return std::nullopt;
  std::ranges::sort(points);
  Plot plot{.title = short_key(of.key, results.rows.front().run->point.settings)};
  plot.x.label = of.key;
  plot.y.label = objective_text(results.file->config.objective);
  Curve all{.name = "points", .color = kGoodColor, .dots = true, .joined = false}, line{.name = "best of each value", .color = kOtherColor};
  for (const auto& [x, y] : points) all.x.push_back(x), all.y.push_back(y);
  for (const auto& [x, y] : best) line.x.push_back(x), line.y.push_back(y);
  Curve winner{.name = "best point", .color = kBestColor, .dots = true, .joined = false};
  winner.x = {*decimal_number(results.best()->run->point.settings[axis].value)};
  winner.y = {results.best()->standing.score->value};
  if (best.size() < points.size() && !of.random()) plot.curves.push_back(std::move(line));
  plot.curves.push_back(std::move(all));
  plot.curves.push_back(std::move(winner));
  const double ratio = best.rbegin()->first / best.begin()->first;
  place_axes(plot, of.log || (of.values.size() > 2 && best.begin()->first > 0 && ratio >= 30));
  if (of.integer && !plot.x.log) plot.x.quantity = Quantity::kCount;  // whole ticks
  return plot;
}

std::optional<Plot> range_test_plot(const Results& results) {
  if (!results.range_test || results.range_test->rate.size() < 2) return std::nullopt;
  const RangeTestResult& found = *results.range_test;
  Plot plot{.title = "Loss over learning rate"};
  plot.x.label = "training.optimizer.learning_rate";
  plot.y.label = "nats";
  plot.curves.push_back({.name = "loss", .color = kOtherColor, .x = found.rate, .y = found.loss});
  plot.curves.push_back({.name = "smoothed", .color = kGoodColor, .x = found.rate, .y = found.smoothed});
  if (found.suggested) plot.marks.push_back({*found.suggested, "suggested"});
  place_axes(plot, true);
  return plot;
}

}  // namespace trireme::sweep
