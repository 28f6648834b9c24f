#pragma once
// What a step is asked and what it answers.
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "trainer/islands/local_updates.h"
#include "trainer/islands/parameter_server.h"

namespace trireme {

/// Largest values with which a step is accepted.
struct StepLimits {
  double loss = std::numeric_limits<double>::infinity();       ///< mean over the global batch's valid tokens, nats
  double grad_norm = std::numeric_limits<double>::infinity();  ///< before clipping
  /// True: a step whose loss is not finite is rejected, too. One whose gradient norm is not finite always is.
  bool finite_loss = false;
  /// Above it this rank stands out: mean of StepResult::local_loss over the rank's valid tokens, nats. May differ between ranks.
  double rank_loss = std::numeric_limits<double>::infinity();
  bool reject_outliers = false;  ///< true: a step in which a rank stands out is rejected, too
  bool operator==(const StepLimits&) const = default;
};

/// With several islands, of the step of this rank's island.
struct StepResult {
  double loss = 0;       ///< mean over the global batch's valid tokens, nats, before the update
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t targets = 0;                ///< BatchFigures::targets; if there are none, loss and gradients are 0
  bool accepted = true;               ///< false: the gradient norm was not finite or StepLimits rejected it, weights are unchanged on every rank
  std::optional<int64_t> loss_scale;  ///< with which the step ran; only with dynamic loss scaling
  /// True if rejected because the loss scale was too large for the gradients; it is lower from here on. Expected now and then with loss scaling.
  bool overflow = false;
  std::string offender;     ///< rejected steps: the first parameter, by name, with a non-finite gradient
  bool over_limit = false;  ///< true if rejected by StepLimits, with a finite gradient
  /// This rank's, before the sum over the ranks: summed loss of its samples if it has the last stage, else 0, and squared norm of the gradients that
  /// it owns and counts, with the loss scale.
  double local_loss = 0, local_squares = 0;
  int64_t local_targets = 0;  ///< BatchFigures::local_targets
  bool stands_out = false;    ///< this rank, by StepLimits
  int64_t outliers = 0;       ///< number of ranks that stand out
  int64_t padding = 0;        ///< BatchFigures::padding
  double cost_imbalance = 0;  ///< BatchFigures::cost_imbalance
  /// With security.aggregation: by data rank, the distance of its gradient from those of the others (aggregate() in parallel/sharding/robust_reducer.h).
  std::vector<double> distances = {};
  std::optional<OuterResult> outer = {};  ///< if an outer step followed, with training.local
  /// With parameter servers, the update: loss and grad_norm are those of its gradients, and this rank has no part in them.
  std::optional<AppliedUpdate> applied = {};
  std::optional<Arrivals> exchanged = {};  ///< with elastic averaging: the exchanges with the centre that have become known
  /// What servers of training.asynchronous have applied; null without them.
  const Arrivals* arrivals() const { return applied ? &*applied : exchanged ? &*exchanged : nullptr; }
};

}  // namespace trireme
