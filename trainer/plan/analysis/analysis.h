#pragma once
// `plan --analyse`: cost, scaling, link requirements and checkpoint interval that follow from a forecast, and textbook formulas for comparison.
#include <nlohmann/json.hpp>

#include "trainer/plan/analysis/links.h"
#include "trainer/plan/analysis/reliability.h"
#include "trainer/plan/analysis/scaling_law.h"

namespace trireme {

struct AnalysisOptions {
  std::optional<double> tokens;  ///< tokens to train on; default: those of training.steps
  /// Step time in seconds of the same layout at another size; nullopt if there is no such run. Without this function there are no scaling curves.
  std::function<std::optional<double>(const Config&, const ClusterConfig&)> step_seconds;
};

/// Time, cost and energy of a training run without failures.
struct TrainingCost {
  double tokens = 0, steps = 0, seconds = 0, device_hours = 0;
  std::optional<double> cost, kilowatt_hours;  ///< set if the cluster's device has a price, watts
};

/// Bandwidth from a device to host memory, bytes/s; assumed.
inline constexpr double kHostCopy = 10e9;

/// Checkpoint interval and its cost, from the cluster's storage, node_mtbf and restart.
struct SavePlan {
  double bytes = 0;          ///< per checkpoint: weights and both moments in the dtype of master weights, 12 B per parameter
  double kept = 0;           ///< checkpoints kept, at most; one more exists while it is being written
  double storage = 0;        ///< most bytes on disk, including that one
  double write_seconds = 0;  ///< written by the nodes of the first replica only
  Failures failures;
  bool mtbf_is_given = false;               ///< resilience.mean_time_between_failures, not node_mtbf of the cluster
  double young = 0, daly = 0;               ///< intervals between saves, seconds
  double steps = 0;                         ///< checkpoint.every closest to Daly's interval, at least the time to write a checkpoint
  double share = 0, share_exponential = 0;  ///< effective training time with `steps`: first order, all orders
  bool every_is_automatic = false;          ///< checkpoint.every auto, which is taken as `steps`
  std::optional<double> configured;         ///< the same with the configuration's checkpoint.every, all orders; nullopt if that is 0
};

/// A figure by a published formula and by the forecast.
struct TextbookFigure {
  std::string what, unit, source;
  double textbook = 0, forecast = 0;
};

struct Analysis {
  std::vector<FrontierDistance> compute;  ///< the run against the compute-optimal model and tokens, for each of scaling_laws()
  TrainingCost bill;
  ScalingCurve strong, weak;  ///< no points without AnalysisOptions::step_seconds
  std::vector<LinkNeed> links;
  ClusterConfig machines;  ///< source of the assumptions of `saving`
  SavePlan saving;
  std::vector<TextbookFigure> textbook;
};

/// `tokens`, or those of training.steps. `config` need not be resolved. Errors: ConfigError if neither is given or `tokens` is not positive.
double training_tokens(const Config& config, const std::optional<double>& tokens);

/// `config` and `cluster` are resolved; `forecast` is their forecast, including memory. Errors: those of training_tokens.
Analysis analyse(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, const AnalysisOptions& options = {});

std::string analysis_text(const Analysis& analysis);
nlohmann::ordered_json analysis_json(const Analysis& analysis);

/// Parts of the analysis, also used by reports and tests. bill_text: "1 T tokens: 3.2 days, 49.2 k device hours, cost 98.3 k, 51.2 MWh\n".
std::string bill_text(const TrainingCost& bill);
TrainingCost training_bill(const Config& config, const ClusterConfig& cluster, double step_seconds, double tokens);
SavePlan save_plan(const Config& config, const ClusterConfig& cluster, double step_seconds, double steps);
std::vector<TextbookFigure> textbook_figures(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, double tokens);

}  // namespace trireme
