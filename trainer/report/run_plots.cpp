#include "trainer/report/run_plots.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"

namespace trireme::report {
namespace {

constexpr size_t kMostBins = 400;  ///< of a curve: about one for two pixels of a wide screen
constexpr double kNothing = std::numeric_limits<double>::quiet_NaN();
constexpr double kFarthest = 1e75;  ///< means beyond are cut off, so that differences and quotients of two places are finite

struct Extent {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  void add(double value) {
    if (!std::isfinite(value)) return;
    value = std::clamp(value, -kFarthest, kFarthest);
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

Extent extent_of(std::span<const Curve> curves, std::vector<double> Curve::*member) {
  Extent all;
  for (const Curve& curve : curves)
    for (const double value : curve.*member) all.add(value);
  return all;
}

/// From the first to the last point of the runs, which lie outside of the middles of the first and the last bin.
Axis x_axis(std::span<const RunView> runs, std::span<const Curve> curves, ProgressAxis progress) {
  static constexpr std::array kLabels{"steps", "tokens", "training time"};
  Extent extent = extent_of(curves, &Curve::x);
  for (const RunView& view : runs)
    if (view.run->steps.size() > 0)
      for (const int64_t step : {view.run->steps.step.front(), view.run->steps.step.back()}) extent.add(view.at(step, progress));
  return fitted_axis(kLabels[static_cast<size_t>(progress)], progress == ProgressAxis::kTime ? Quantity::kDuration : Quantity::kCount, extent.low,
                     extent.high);
}

/// Shows all means, and of the ranges what does not compress the means to less than half of the height; spikes beyond are cut off.
/// Logarithmic if the means span at least a factor of `log_from`.
Axis y_axis(const std::string& label, Quantity quantity, std::span<const Curve> curves, double log_from) {
  Extent shown = extent_of(curves, &Curve::y), low = extent_of(curves, &Curve::low), high = extent_of(curves, &Curve::high);
  const bool log = shown.low > 1 / kFarthest && shown.high / shown.low >= log_from;
  const Extent means = shown;
  const auto widest = [&](double factor) {
    return log ? std::pair(means.low * std::pow(means.low / means.high, factor), means.high * std::pow(means.high / means.low, factor))
               : std::pair(means.low - factor * (means.high - means.low), means.high + factor * (means.high - means.low));
  };
  constexpr double kHalf = 0.5;
  const auto [lowest, highest] = widest(kHalf);
  if (!low.empty()) shown.add(std::max(low.low, lowest));
  if (!high.empty()) shown.add(std::min(high.high, highest));
  return fitted_axis(label, quantity, shown.low, shown.high, log);
}

/// With 0 at the bottom.
Axis from_zero(Axis axis) {
  if (axis.low > 0 && !axis.log) axis.low = 0;
  if (axis.low < 0 && axis.high > 0) axis.low = 0;
  return axis;
}

/// The curve without points whose place is unknown, as of lines without tokens or time.
Curve placed(const Curve& curve) {
  Curve result = curve;
  for (std::vector<double>* values : {&result.x, &result.y, &result.low, &result.high}) values->clear();
  for (size_t i = 0; i < curve.x.size(); ++i) {
    if (!std::isfinite(curve.x[i])) continue;
    result.x.push_back(curve.x[i]);
    result.y.push_back(curve.y[i]);
    if (curve.low.empty()) continue;
    result.low.push_back(curve.low[i]);
    result.high.push_back(curve.high[i]);
  }
  return result;
}

Curve curve_of(const RunView& view, Figure figure, ProgressAxis progress, size_t run) {
  Envelope envelope = envelope_of(view.run->steps[figure], view.bins);
  Curve curve{.name = view.label, .color = run, .run = run, .x = view.x[static_cast<size_t>(progress)], .y = std::move(envelope.mean)};
  if (view.is_binned()) {
    curve.low = std::move(envelope.low);
    curve.high = std::move(envelope.high);
  }
  return placed(curve);
}

/// The validation loss; with `set`, of the set of that name.
Curve validation_curve(const RunView& view, ProgressAxis progress, const std::string& set) {
  Curve curve{.name = set.empty() ? "validation" : "validation: " + set, .dashed = true};
  for (const EvaluationRecord& one : view.run->evaluations) {
    double loss = set.empty() ? one.loss : kNothing;
    for (const auto& [name, of_set] : one.sets)
      if (name == set) loss = of_set;
    curve.x.push_back(view.at(one.step, progress));
    curve.y.push_back(loss);
  }
  constexpr size_t kMostDots = 100;
  curve.dots = curve.x.size() <= kMostDots;
  curve = placed(curve);
  if (curve.x.size() <= 2 * kMostBins) return curve;
  const std::vector<Bin> bins = bins_of(curve.x.size(), kMostBins);
  Envelope envelope = envelope_of(curve.y, bins);
  curve.x = middles_of(curve.x, bins);
  curve.y = std::move(envelope.mean);
  curve.low = std::move(envelope.low);
  curve.high = std::move(envelope.high);
  return curve;
}

bool any_has(std::span<const RunView> runs, Figure figure) {
  return std::ranges::any_of(runs, [&](const RunView& view) { return view.run->steps.has(figure); });
}

/// Restarts, where there are few enough to tell apart.
void add_restarts(Plot& plot, std::span<const RunView> runs, ProgressAxis progress) {
  constexpr size_t kMost = 50;
  for (size_t i = 0; i < runs.size(); ++i) {
    std::vector<Mark> marks;
    for (const Job& job : jobs_of(*runs[i].run))
      if (job.step > 0) marks.push_back({runs[i].at(job.step, progress), "restart", i});
    if (marks.size() <= kMost) plot.marks.insert(plot.marks.end(), marks.begin(), marks.end());
  }
}

std::optional<Plot> plot_of(std::span<const RunView> runs, Figure figure, ProgressAxis progress, const std::string& title) {
  if (!any_has(runs, figure)) return std::nullopt;
  Plot plot{.title = title};
  for (size_t i = 0; i < runs.size(); ++i)
    if (runs[i].run->steps.has(figure)) plot.curves.push_back(curve_of(runs[i], figure, progress, i));
  plot.x = x_axis(runs, plot.curves, progress);
  return plot;
}

}  // namespace

RunView::RunView(const RunRecord& record, std::string name) : run(&record), label(std::move(name)), bins(bins_of(record.steps.size(), kMostBins)) {
  const std::vector<double> steps(record.steps.step.begin(), record.steps.step.end());
  x[static_cast<size_t>(ProgressAxis::kSteps)] = middles_of(steps, bins);
  x[static_cast<size_t>(ProgressAxis::kTokens)] = middles_of(record.steps[Figure::kTokens], bins);
  x[static_cast<size_t>(ProgressAxis::kTime)] = middles_of(record.steps.elapsed_seconds, bins);
  const StepTable& table = record.steps;
  tokens_per_step = table.size() == 0 ? kNothing : table[Figure::kTokensPerSecond].back() * table[Figure::kStepSeconds].back();
  for (const EventRecord& event : record.events) {
    const auto found = event.kind == "start" ? event.fields.find("forecast") : event.fields.end();
    if (found == event.fields.end() || !found->is_object()) continue;
    const JobForecast one{event.after_step, number_in(*found, "step_seconds"), number_in(*found, "step_low"), number_in(*found, "step_high")};
    if (!(one.step_seconds > 0 && one.step_low > 0 && one.step_high > 0)) continue;
    const bool as_before = !forecasts.empty() && forecasts.back().step_seconds == one.step_seconds && forecasts.back().step_low == one.step_low &&
                           forecasts.back().step_high == one.step_high;
    if (!as_before) forecasts.push_back(one);
  }
}

double RunView::at(int64_t step, ProgressAxis progress) const {
  if (progress == ProgressAxis::kSteps) return static_cast<double>(step);
  const StepTable& table = run->steps;
  const auto found = std::ranges::upper_bound(table.step, step);
  if (found == table.step.begin()) return 0;
  const auto index = static_cast<size_t>(found - table.step.begin()) - 1;
  return progress == ProgressAxis::kTokens ? table[Figure::kTokens][index] : table.elapsed_seconds[index];
}

std::optional<Plot> loss_plot(std::span<const RunView> runs, ProgressAxis progress) {
  Plot plot{.title = "Loss"};
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunView& view = runs[i];
    if (view.run->steps.has(Figure::kLoss)) {
      plot.curves.push_back(curve_of(view, Figure::kLoss, progress, i));
      if (runs.size() == 1) plot.curves.back().name = "training";
    }
    if (view.run->evaluations.empty()) continue;
    std::vector<std::string> sets{""};
    if (runs.size() == 1)
      for (const auto& [name, loss] : view.run->evaluations.back().sets) sets.push_back(name);
    for (size_t set = 0; set < sets.size(); ++set) {
      Curve& curve = plot.curves.emplace_back(validation_curve(view, progress, sets[set]));
      curve.run = i;
      curve.color = runs.size() == 1 ? 1 + set : i;
      if (runs.size() > 1) curve.name = view.label + ", validation";
    }
  }
  if (plot.curves.empty()) return std::nullopt;
  constexpr double kLogFrom = 3;
  plot.x = x_axis(runs, plot.curves, progress);
  plot.y = y_axis("loss in nats per token", Quantity::kNumber, plot.curves, kLogFrom);
  add_restarts(plot, runs, progress);
  return plot;
}

std::optional<Plot> figure_plot(std::span<const RunView> runs, Figure figure, ProgressAxis progress) {
  static constexpr std::array<const char*, kFigureNames.size()> kTitles{
      "Loss", "Gradient norm", "Learning rate", "Tokens", "Step time", "Throughput", "Model TFLOP/s", "Model FLOP/s utilisation", "Loss scale"};
  std::optional<Plot> plot = plot_of(runs, figure, progress, kTitles[static_cast<size_t>(figure)]);
  if (!plot) return plot;
  constexpr double kNever = std::numeric_limits<double>::infinity();
  const bool spans_decades = figure == Figure::kGradNorm || figure == Figure::kLossScale;
  const Quantity quantity = figure == Figure::kMfu           ? Quantity::kPercent
                            : figure == Figure::kStepSeconds ? Quantity::kDuration
                            : figure == Figure::kLossScale   ? Quantity::kCount
                                                             : Quantity::kNumber;
  plot->y = y_axis(figure == Figure::kGradNorm ? "before clipping" : "", quantity, plot->curves, spans_decades ? 10 : kNever);
  if (!spans_decades) plot->y = from_zero(plot->y);
  return plot;
}

std::optional<Plot> throughput_plot(std::span<const RunView> runs, ProgressAxis progress) {
  std::optional<Plot> plot = plot_of(runs, Figure::kTokensPerSecond, progress, "Throughput");
  if (!plot) return plot;
  if (runs.size() == 1) plot->curves.front().name = "measured";
  plot->y = y_axis("tokens per second", Quantity::kCount, plot->curves, std::numeric_limits<double>::infinity());
  double most = plot->y.high;
  for (size_t i = 0; i < runs.size(); ++i) {
    const RunView& view = runs[i];
    if (!std::isfinite(view.tokens_per_step)) continue;
    for (size_t job = 0; job < view.forecasts.size(); ++job) {
      const JobForecast& forecast = view.forecasts[job];
      Band band{.color = runs.size() == 1 ? 1 : i, .run = i};
      if (job == 0) band.name = runs.size() == 1 ? "forecast" : view.label + ", forecast";
      band.low = view.tokens_per_step / forecast.step_high;
      band.value = view.tokens_per_step / forecast.step_seconds;
      band.high = view.tokens_per_step / forecast.step_low;
      band.begin = job == 0 ? plot->x.low : view.at(forecast.after_step, progress);
      band.end = job + 1 < view.forecasts.size() ? view.at(view.forecasts[job + 1].after_step, progress) : plot->x.high;
      plot->bands.push_back(band);
      most = std::max(most, band.high * 1.04);
    }
  }
  plot->y.high = most;
  plot->y = from_zero(plot->y);
  return plot;
}

std::vector<Job> jobs_of(const RunRecord& run) {
  std::vector<Job> jobs;
  for (const EventRecord& event : run.events)
    if (event.kind == "start") jobs.push_back({event.time, event.time, event.after_step});
  const auto extend = [&](double time) {
    if (!std::isfinite(time)) return;
    // Starts are few and in the order of time, so a search from the end is short.
    const auto job = std::find_if(jobs.rbegin(), jobs.rend(), [&](const Job& one) { return one.begin <= time; });
    if (job != jobs.rend()) job->end = std::max(job->end, time);
  };
  for (const double time : run.steps.time) extend(time);
  for (const EvaluationRecord& one : run.evaluations) extend(one.time);
  for (const EventRecord& event : run.events) extend(event.time);
  return jobs;
}

std::optional<Plot> time_line_plot(const RunView& view) {
  const StepTable& steps = view.run->steps;
  const std::vector<Job> jobs = jobs_of(*view.run);
  Curve curve{.name = "step", .x = middles_of(steps.time, view.bins), .y = view.x[static_cast<size_t>(ProgressAxis::kSteps)]};
  Extent times;
  for (const double time : steps.time) times.add(time);
  for (const Job& job : jobs) times.add(job.begin), times.add(job.end);
  if (times.empty() || steps.size() == 0) return std::nullopt;
  Plot plot{.title = "Steps over the wall clock"};
  for (size_t i = 0; i < jobs.size(); ++i) {
    if (i > 0 && std::isfinite(jobs[i].begin)) {
      if (std::isfinite(jobs[i - 1].end)) plot.shades.push_back({jobs[i - 1].end, jobs[i].begin});
      plot.marks.push_back({jobs[i].begin, "restart"});
    }
  }
  plot.curves.push_back(placed(curve));
  plot.x = fitted_axis("time, UTC", Quantity::kClock, times.low, times.high);
  plot.y = fitted_axis("step", Quantity::kCount, 0, static_cast<double>(steps.step.back()));
  return plot;
}

std::optional<Plot> rank_plot(const RunView& view) {
  const std::vector<RankStepTimes::Rank>& ranks = view.run->ranks.ranks();
  std::vector<double> number, mean, low, high;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    const bool known = ranks[rank].count > 0;
    number.push_back(static_cast<double>(rank));
    mean.push_back(known ? ranks[rank].seconds / static_cast<double>(ranks[rank].count) : kNothing);
    low.push_back(known ? ranks[rank].low : kNothing);
    high.push_back(known ? ranks[rank].high : kNothing);
  }
  if (view.run->ranks.empty()) return std::nullopt;
  constexpr size_t kMostRanks = 2 * kMostBins;
  const std::vector<Bin> bins = bins_of(number.size(), kMostRanks);
  Curve curve{.name = "mean, minimum to maximum over the measurements", .x = middles_of(number, bins)};
  // If several ranks share a bin, the slowest mean counts: it must not disappear.
  curve.y = envelope_of(mean, bins).high;
  curve.low = envelope_of(low, bins).low;
  curve.high = envelope_of(high, bins).high;
  Plot plot{.title = "Busy time by rank"};
  plot.curves.push_back(std::move(curve));
  plot.x = fitted_axis("rank", Quantity::kCount, 0, std::max(1.0, number.back()));
  plot.y = y_axis("seconds per step", Quantity::kDuration, plot.curves, std::numeric_limits<double>::infinity());
  return plot;
}

std::vector<NamedPlot> all_plots(std::span<const RunView> runs) {
  std::vector<NamedPlot> plots;
  const auto add = [&](const std::string& name, std::optional<Plot> plot) {
    if (plot) plots.push_back({name, std::move(*plot)});
  };
  for (const ProgressAxis progress : {ProgressAxis::kSteps, ProgressAxis::kTokens, ProgressAxis::kTime})
    add(concat("loss-", kProgressNames[static_cast<size_t>(progress)]), loss_plot(runs, progress));
  add("learning-rate", figure_plot(runs, Figure::kLearningRate, ProgressAxis::kSteps));
  add("gradient-norm", figure_plot(runs, Figure::kGradNorm, ProgressAxis::kSteps));
  add("throughput", throughput_plot(runs, ProgressAxis::kSteps));
  add("utilisation", figure_plot(runs, Figure::kMfu, ProgressAxis::kSteps));
  add("loss-scale", figure_plot(runs, Figure::kLossScale, ProgressAxis::kSteps));
  for (size_t i = 0; i < runs.size(); ++i) {
    const std::string number = runs.size() > 1 ? concat("-", i + 1) : "";
    add("time-line" + number, time_line_plot(runs[i]));
    add("ranks" + number, rank_plot(runs[i]));
  }
  return plots;
}

}  // namespace trireme::report
