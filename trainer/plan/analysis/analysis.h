#pragma once
// `plan --analyse`: what follows from a forecast for money, scale, links and saving, and what the literature's formulas say beside it.
#include <nlohmann/json.hpp>

#include "trainer/plan/analysis/links.h"
#include "trainer/plan/analysis/reliability.h"
#include "trainer/plan/analysis/scaling_law.h"

namespace trireme {

struct AnalysisOptions {
  std::optional<double> tokens;      ///< to train on; else those of training.steps
  std::optional<double> flops;       ///< to be spent best; else 6 N D of the model and these tokens
  double node_mtbf = 264 * 86400.0;  ///< seconds between failures of one node; 419 in 54 days on 2048 nodes: Llama 3, arXiv:2407.21783, 3.3.4
  double storage_write = 0.71e9;     ///< bytes/s a node: 273 GB/s from 384 nodes; SC'21, arXiv:2104.04473, 5.10
  double storage_read = 2.6e9;       ///< bytes/s a node: 1 TB/s to 384 nodes; the same
  double host_copy = 10e9;           ///< bytes/s from a device to its host's memory; an assumption
  double restart = 120;              ///< seconds from a failure that is known to the first step, loading aside; an assumption
  /// Step seconds of another size of the same layout, nothing where there is no such run; for scaling curves, which are left out without it.
  std::function<std::optional<double>(const Config&, const ClusterConfig&)> step_seconds;
};

/// Model and tokens of the run, what its FLOPs could buy, and the best use of the budget, by each of scaling_laws().
struct ComputeUse {
  double parameters = 0, tokens = 0, budget = 0;  ///< budget in FLOPs
  std::vector<FrontierDistance> run;
  std::vector<ComputeOptimum> best;
};

/// Without failures.
struct TrainingBill {
  double tokens = 0, steps = 0, seconds = 0, device_hours = 0;
  std::optional<double> cost, kilowatt_hours;  ///< where the cluster's device has a price, watts
};

struct SavingPlan {
  double bytes = 0;    ///< of a checkpoint: weights and both moments in the dtype of master weights, 12 B a parameter
  double kept = 0;     ///< checkpoints that stay; one more is there while it is written
  double storage = 0;  ///< bytes at most, that one included
  double write_seconds = 0;
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
  ComputeUse compute;
  TrainingBill bill;
  ScalingCurve strong, weak;  ///< no points where no step_seconds were given
  std::vector<LinkNeed> links;
  SavingPlan saving;
  std::vector<TextbookFigure> textbook;
};

/// `config` and `cluster` are resolved, `forecast` is theirs, with memory. Errors: ConfigError where neither training.steps nor options say how many
/// tokens there are, or an option is not positive.
Analysis analyse(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, const AnalysisOptions& options = {});

std::string analysis_text(const Analysis& analysis);
nlohmann::ordered_json analysis_json(const Analysis& analysis);

/// Parts of it, for tests and other readers.
TrainingBill training_bill(const Config& config, const ClusterConfig& cluster, double step_seconds, double tokens);
SavingPlan saving_plan(const Config& config, const ClusterConfig& cluster, double step_seconds, double steps, const AnalysisOptions& options);
std::vector<TextbookFigure> textbook_figures(const Config& config, const ClusterConfig& cluster, const Forecast& forecast, double tokens);

}  // namespace trireme
