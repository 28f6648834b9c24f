#pragma once
// Strong and weak scaling: measured step times over numbers of ranks, beside the planner's forecast of the same steps.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace trireme::bench {

/// A step on some number of ranks.
struct ScalePoint {
  int64_t ranks = 1;
  double seconds = 0;                   ///< median of the fastest round
  double low = 0, high = 0;             ///< 10 % and 90 % quantiles over all rounds
  double tokens = 0;                    ///< of a step
  std::optional<double> forecast = {};  ///< seconds
  bool shares_cores = false;            ///< more ranks than cores or GPUs: no part of a fit
  std::string left_out = {};            ///< why it was not measured; then the figures above are 0
};

/// Points of one kind, ascending by ranks. The fits are those of trainer/plan/analysis/scaling.h over the points that do not share cores.
struct ScaleCurve {
  std::vector<ScalePoint> points;
  std::optional<double> serial_share = {};           ///< measured; nullopt for fewer than two points
  std::optional<double> forecast_serial_share = {};  ///< of the forecasts of the same points
  int64_t fitted = 0;                                ///< points of the fit
};
ScaleCurve strong_curve(std::vector<ScalePoint> points);  ///< the same step on more ranks: Amdahl 1967
ScaleCurve weak_curve(std::vector<ScalePoint> points);    ///< work in proportion to the ranks: Gustafson 1988

/// Throughput of `point` relative to the first point of the curve.
double speedup_of(const ScaleCurve& curve, const ScalePoint& point);

struct ScaleResult {
  ScaleCurve strong, weak;
  int64_t threads = 1;  ///< of each rank
  int64_t places = 1;   ///< ranks that do not share cores, or GPUs
  bool gpu = false;
  double foreign_share = 0;  ///< of the cores, used by other processes meanwhile
  std::string figures;       ///< source of the forecast's figures
};

/// {"threads_per_rank", "places", "foreign_share", "figures", "strong" and "weak": {"points": [{"ranks", "step_seconds", "low", "high",
/// "tokens_per_second", "speedup", "efficiency", "forecast_seconds", "forecast_ratio": forecast / measured, "shares_cores", "left_out"}], "fitted_points",
/// "serial_share", "forecast_serial_share"}}. null: not known.
nlohmann::ordered_json scale_json(const ScaleResult& result);
std::string scale_text(const ScaleResult& result);
/// Speedup over ranks, measured and forecast, with the fits, as a drawing.
std::string scale_svg(const ScaleResult& result, const std::string& title);

}  // namespace trireme::bench
