#include "trainer/bench/scale.h"

#include <algorithm>
#include <functional>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/bench/foreign_load.h"
#include "trainer/files/table.h"
#include "trainer/plan/analysis/scaling.h"
#include "trainer/plan/text.h"

namespace trireme::bench {
namespace {

using nlohmann::ordered_json;
using Scaling = ScalingCurve (*)(const std::vector<int64_t>& devices, const StepSeconds& step_seconds);

ScaleCurve curve_of(std::vector<ScalePoint> points, Scaling scaling) {
  ScaleCurve curve{std::move(points)};
  std::vector<int64_t> ranks;
  bool forecast = true;
  for (const ScalePoint& point : curve.points) {
    if (point.shares_cores || !point.left_out.empty()) continue;
    ranks.push_back(point.ranks);
    forecast = forecast && point.forecast.has_value();
  }
  curve.fitted = static_cast<int64_t>(ranks.size());
  if (ranks.size() < 2) return curve;
  const auto at = [&](int64_t count) -> const ScalePoint& { return *std::ranges::find(curve.points, count, &ScalePoint::ranks); };
  curve.serial_share = scaling(ranks, [&](int64_t count) { return std::optional(at(count).seconds); }).serial_share;
  if (forecast) curve.forecast_serial_share = scaling(ranks, [&](int64_t count) { return at(count).forecast; }).serial_share;
  return curve;
}

const ScalePoint& first_of(const ScaleCurve& curve) {
  return *std::ranges::find_if(curve.points, [](const ScalePoint& point) { return point.left_out.empty(); });
}

ordered_json or_null(const std::optional<double>& value) { return value ? ordered_json(*value) : ordered_json(); }

ordered_json curve_json(const ScaleCurve& curve) {
  ordered_json points = ordered_json::array();
  for (const ScalePoint& point : curve.points) {
    const bool measured = point.left_out.empty();
    const auto figure = [&](const std::function<double()>& value) { return measured ? ordered_json(value()) : ordered_json(); };
    points.push_back({{"ranks", point.ranks},
                      {"step_seconds", figure([&] { return point.seconds; })},
                      {"low", figure([&] { return point.low; })},
                      {"high", figure([&] { return point.high; })},
                      {"tokens_per_second", figure([&] { return point.tokens / point.seconds; })},
                      {"speedup", figure([&] { return speedup_of(curve, point); })},
                      {"efficiency", figure([&] {
                         return speedup_of(curve, point) * static_cast<double>(first_of(curve).ranks) / static_cast<double>(point.ranks);
                       })},
                      {"forecast_seconds", or_null(point.forecast)},
                      {"forecast_ratio", point.forecast && measured ? ordered_json(*point.forecast / point.seconds) : ordered_json()},
                      {"shares_cores", point.shares_cores},
                      {"left_out", measured ? ordered_json() : ordered_json(point.left_out)}});
  }
  return {{"points", points},
          {"fitted_points", curve.fitted},
          {"serial_share", or_null(curve.serial_share)},
          {"forecast_serial_share", or_null(curve.forecast_serial_share)}};
}

std::string fit_text(const std::string& kind, const ScaleCurve& curve, const char* law) {
  if (!curve.serial_share) return concat(kind, ": no fit, which needs two numbers of ranks that do not share cores\n");
  const std::string two = curve.fitted == 2 ? "; two points determine it, so it has no error to show" : "";
  const std::string forecast = curve.forecast_serial_share ? concat(", forecast ", percent_text(*curve.forecast_serial_share)) : "";
  return concat(kind, ": serial share ", percent_text(*curve.serial_share), " (", law, ", ", counted(curve.fitted, "point"), two, ")", forecast,
                "\n");
}

std::string table_text(const ScaleCurve& curve, bool gpu) {
  ordered_json rows = ordered_json::array();
  std::string notes;
  const ordered_json json = curve_json(curve);
  for (const ordered_json& point : json["points"]) {
    ordered_json row;
    for (const char* key :
         {"ranks", "step_seconds", "low", "high", "tokens_per_second", "speedup", "efficiency", "forecast_seconds", "forecast_ratio"})
      row[key] = point[key];
    const std::string shares = gpu ? "shares GPUs" : "oversubscribed";
    row["note"] = !point["left_out"].is_null() ? "left out" : point["shares_cores"].get<bool>() ? shares : "";
    rows.push_back(row);
    if (!point["left_out"].is_null()) notes += concat("  ", point["ranks"].get<int64_t>(), " ranks: ", point["left_out"].get<std::string>(), "\n");
  }
  return table_of(rows) + notes;
}

}  // namespace

ScaleCurve strong_curve(std::vector<ScalePoint> points) { return curve_of(std::move(points), strong_scaling); }
ScaleCurve weak_curve(std::vector<ScalePoint> points) { return curve_of(std::move(points), weak_scaling); }

double speedup_of(const ScaleCurve& curve, const ScalePoint& point) {
  const ScalePoint& first = first_of(curve);
  return point.tokens / point.seconds / (first.tokens / first.seconds);
}

ordered_json scale_json(const ScaleResult& result) {
  return {{"threads_per_rank", result.threads},    {"places", result.places},
          {"foreign_share", result.foreign_share}, {"figures", result.figures},
          {"strong", curve_json(result.strong)},   {"weak", curve_json(result.weak)}};
}

std::string scale_text(const ScaleResult& result) {
  std::string text =
      concat("strong scaling: the same step on more ranks of ", counted(result.threads, "thread"), "\n", table_text(result.strong, result.gpu),
             "\nweak scaling: the batch grows with the ranks\n", table_text(result.weak, result.gpu), "\n",
             fit_text("strong", result.strong, "Amdahl"), fit_text("weak", result.weak, "Gustafson"), "forecast from ", result.figures, "\n");
  const auto shares = [](const ScaleCurve& curve) {
    return std::ranges::any_of(curve.points, [](const ScalePoint& point) { return point.shares_cores && point.left_out.empty(); });
  };
  if (shares(result.strong) || shares(result.weak))
    text += concat("more than ", counted(result.places, "rank"), " have to share ", result.gpu ? "GPUs" : "cores",
                   " here: their times say nothing about a larger machine, and no fit uses them\n");
  if (result.foreign_share > kBusyMachine)
    text +=
        concat("warning: other processes used ", percent_text(result.foreign_share), " of the cores: these are not the figures of an idle machine\n");
  return text;
}

}  // namespace trireme::bench
