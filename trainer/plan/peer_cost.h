#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme {

/// What resilience.peer_copies costs.
struct PeerCost {
  double node_bytes = 0;        ///< of the memory of a node, for two states with their copies; mean over the nodes
  double send_seconds = 0;      ///< that the rank with the largest part sends, behind the steps
  double interval_seconds = 0;  ///< from one copy to the next
  bool fits_interval() const { return send_seconds <= interval_seconds; }
};

/// `config` and `cluster` are resolved. `step_seconds`: forecast.
PeerCost peer_cost(const Config& config, const ClusterConfig& cluster, double step_seconds);
nlohmann::ordered_json peer_cost_json(const PeerCost& cost);
/// A line.
std::string peer_cost_text(const Config& config, const PeerCost& cost);

}  // namespace trireme
