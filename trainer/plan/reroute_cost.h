#pragma once
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme {

/// What resilience.reroute costs: simulated steps of all ranks, as in simulate_step(), so without norm and update.
struct RerouteCost {
  double undisturbed_seconds = 0;  ///< without relieved ranks
  double rerouted_seconds = 0;
  /// Without the data ranks of relieved ranks, whose micro-batches the others compute as accumulation: what a restart on fewer ranks would give. Unset if
  /// none is left, or if the schedule is read from a file, which is for one number of micro-batches.
  std::optional<double> fewer_seconds;
  int64_t fewer_ranks = 0, fewer_microbatches = 0;  ///< data ranks, and micro-batches of each
  int64_t added_microbatches = 0;                   ///< most that a helper computes beside its own
};

/// `config` and `cluster` are resolved. nullopt without resilience.reroute, and where several ranks share a core: they fill each other's waits, so what
/// they compute takes as long wherever it is computed.
std::optional<RerouteCost> reroute_cost(const Config& config, const ClusterConfig& cluster);
nlohmann::ordered_json reroute_cost_json(const RerouteCost& cost);
/// Some lines.
std::string reroute_cost_text(const RerouteCost& cost);

}  // namespace trireme
