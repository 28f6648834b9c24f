#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/plan/forecast.h"

namespace trireme {

/// What security.privacy costs, and what it promises.
struct PrivacyCost {
  double plain_step_seconds = 0;  ///< without it
  double step_seconds = 0;        ///< of a step with the expected number of sequences
  /// Both assume no restarts; unset if the number of sequences is not known here. Infinite where nothing bounds epsilon.
  std::optional<double> noise, epsilon;
  int64_t noise_ranks = 0;  ///< privacy::Facts::noise_ranks
};

/// `config` is resolved and private; `private_step`: its forecast. `sequences`: of the training data, 0 if unknown. One forecast.
PrivacyCost privacy_cost(const Config& config, const ClusterConfig& cluster, const Forecast& private_step, int64_t sequences);
nlohmann::ordered_json privacy_cost_json(const PrivacyCost& cost);
/// A line.
std::string privacy_cost_text(const Config& config, const PrivacyCost& cost);

}  // namespace trireme
