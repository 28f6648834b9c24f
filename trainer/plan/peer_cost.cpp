#include "trainer/plan/peer_cost.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/counted.h"
#include "trainer/loop/state.h"
#include "trainer/plan/text.h"

namespace trireme {

PeerCost peer_cost(const Config& config, const ClusterConfig& cluster, double step_seconds) {
  const ParallelConfig& p = config.parallel;
  const ResilienceConfig& keys = config.resilience;
  const auto copies = static_cast<double>(keys.peer_copies), bytes = static_cast<double>(state_bytes(config));
  const int64_t shards = p.zero_stage > 0 ? *p.data / p.replicate : 1;  // the other data ranks have the same state, and save none
  const double part = bytes / static_cast<double>(p.tensor * p.pipeline * shards);
  const LinkConfig& link = cluster.nodes > 1 ? cluster.network : cluster.node_link;
  return {2 * (1 + copies) * bytes / static_cast<double>(cluster.nodes), copies * part / *link.bandwidth,
          static_cast<double>(keys.peer_every) * step_seconds};
}

nlohmann::ordered_json peer_cost_json(const PeerCost& cost) {
  return {{"node_bytes", cost.node_bytes}, {"send_seconds", cost.send_seconds}, {"interval_seconds", cost.interval_seconds}};
}

std::string peer_cost_text(const Config& config, const PeerCost& cost) {
  const ResilienceConfig& keys = config.resilience;
  const auto needed = static_cast<int64_t>(std::ceil(static_cast<double>(keys.peer_every) * cost.send_seconds / cost.interval_seconds));
  return concat("resilience.peer_copies: the state and ", counted(keys.peer_copies, "copy", "copies"), " of it, twice, take ",
                bytes_text(cost.node_bytes), " of each node's memory; sending takes ", seconds_text(cost.send_seconds), " behind the ",
                seconds_text(cost.interval_seconds), " of ", counted(keys.peer_every, "step"),
                cost.fits_interval() ? "" : concat(", which is too short; allowed peer_every from ", needed), "\n");
}

}  // namespace trireme
