#pragma once
// `plan --analyse`: what follows from a forecast for money, scale, links and saving, and what the literature's formulas say beside it.
#include <nlohmann/json.hpp>

#include "trainer/plan/analysis/links.h"
#include "trainer/plan/analysis/reliability.h"
#include "trainer/plan/analysis/scaling_law.h"

namespace trireme {

struct AnalysisOptions {
  std::optional<double> tokens;  ///< to train on; else those of training.steps
  /// Step seconds of another size of the same layout, nothing where there is no such run; for scaling curves, which are left out without it.
  std::function<std::optional<double>(const Config&, const ClusterConfig&)> step_seconds;
};

/// Without failures.
struct TrainingBill {
  double tokens = 0, steps = 0, seconds = 0, device_hours = 0;
  std::optional<double> cost, kilowatt_hours;  ///< where the cluster's device has a price, watts
};

/// Bytes/s from a device to its host's memory; an assumption.
inline constexpr double kHostCopy = 10e9;

/// By the cluster's storage, node_mtbf and restart.
struct SavePlan {
  double bytes = 0;          ///< of a checkpoint: weights and both moments in the dtype of master weights, 12 B a parameter
  double kept = 0;           ///< checkpoints that stay; one more is there while it is written
  double storage = 0;        ///< bytes at most, that one included
  double write_seconds = 0;  ///< by the nodes of the first replica, which alone saves
  Failures failures;
  double young = 0, daly = 0;  ///< seconds between saves
  double steps = 0;            ///< checkpoint.every that comes nearest to Daly's interval, but no more often than a checkpoint takes to write
  double share = 0, share_exponential = 0;  ///< effective training time with it: first order, all orders
  std::optional<double> configured;         ///< with the configuration's checkpoint.every, all orders; nothing where that is 0
};

/// A published formula's figure and the forecast's.
struct TextbookFigure {
  std::string what, unit, source;
  double textbook = 0, forecast = 0;
};

struct Analysis {
  std::vector<FrontierDistance> compute;  ///< model and tokens of the run against the best use of their FLOPs, by each of scaling_laws()
  TrainingBill bill;
  ScalingCurve strong, weak;  ///< no points where no step_seconds were given
  std::vector<LinkNeed> links;
  ClusterConfig machines;  ///< what the plan of saves reckons with
  SavePlan saving;
  std::vector<TextbookFigure> textbook;
};

/// `tokens`, or those of training.steps; `config` need not be resolved. Errors: ConfigError where neither says how many, or they are none.
double training_tokens(const Config& config, const std::optional<double>& tokens);

/// `config` and `cluster` are resolved, `forecast` is theirs, with memory. Errors: those of training_tokens.
Analysis analyse(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, const AnalysisOptions& options = {});

std::string analysis_text(const Analysis& analysis);
nlohmann::ordered_json analysis_json(const Analysis& analysis);

/// Parts of it, for tests and other readers. The bill: "1 T tokens: 3.2 days, 49.2 k device hours, cost 98.3 k, 51.2 MWh" and a new line.
std::string bill_text(const TrainingBill& bill);
TrainingBill training_bill(const Config& config, const ClusterConfig& cluster, double step_seconds, double tokens);
SavePlan save_plan(const Config& config, const ClusterConfig& cluster, double step_seconds, double steps);
std::vector<TextbookFigure> textbook_figures(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, double tokens);

}  // namespace trireme
