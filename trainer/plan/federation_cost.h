#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "trainer/config/config.h"

namespace trireme {

/// What security.federation sends in a round, without the frames around it (below 0.1 %).
struct FederationCost {
  int64_t members = 0, rounds = 0, round_steps = 0;
  double received_bytes = 0;            ///< by a member: the weights in the dtype of the master weights
  double sent_bytes = 0;                ///< by a member: its update, 8 bytes for each parameter
  double coordinator_memory_bytes = 0;  ///< beside its training state: the sum, two updates that arrive, and three copies of weights or momentum
  double coordinator_bytes() const { return static_cast<double>(members) * (received_bytes + sent_bytes); }  ///< sent and received
};

/// `config` is that of everybody, with training.steps.
FederationCost federation_cost(const Config& config, int64_t parameters);
nlohmann::ordered_json federation_cost_json(const FederationCost& cost);
/// A line.
std::string federation_cost_text(const FederationCost& cost);

}  // namespace trireme
