#pragma once
// What each rank has contributed to a step with an anomaly, to name the ranks that differ from the others.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "trainer/loop/trainer.h"

namespace trireme {

/// What one rank contributes to the loss and the gradient norm of a step.
struct RankResult {
  int rank = 0;  ///< in the world
  std::string host;
  std::optional<double> loss;  ///< mean over the rank's samples, nats; none without the last stage
  double loss_limit = 0;       ///< above which the rank stands out; infinity: none
  double grad_norm = 0;        ///< of the gradients that the rank owns, to which all data ranks have contributed
  bool stands_out = false;
};

/// The results of every rank of this rank's island, on all of them. Collective.
std::vector<RankResult> gather_rank_results(Trainer& trainer, const StepResult& result, const StepLimits& limits);

/// ": rank 3 on host a with a loss of 9.25, above 4.5"; of at most four ranks, further ones are counted.
std::string outliers_text(const std::vector<RankResult>& ranks);
/// "; rank 3 on host a has the highest loss, 9.25, and rank 1 on host b the highest gradient norm, 17"; empty for one rank or none.
std::string highest_text(const std::vector<RankResult>& ranks);
/// The lists "rank_loss", "rank_loss_limit" and "rank_grad_norm" by rank, and "outliers": the ranks that stand out.
nlohmann::ordered_json to_json(const std::vector<RankResult>& ranks);

}  // namespace trireme
