#include "trainer/plan/federation_cost.h"

#include "kernels/core/counted.h"
#include "kernels/core/dtype.h"
#include "trainer/files/table.h"
#include "trainer/layout/lowered_schedule.h"

namespace trireme {

FederationCost federation_cost(const Config& config, int64_t parameters) {
  const auto count = static_cast<double>(parameters);
  const int64_t steps = config.training.local.steps.value_or(1);
  return {config.security.federation.members,
          config.training.steps.value_or(0) / steps,
          steps,
          count * static_cast<double>(size_of(precision_of(config.training).master)),
          count * sizeof(uint64_t),
          count * static_cast<double>(3 * sizeof(uint64_t) + 3 * size_of(precision_of(config.training).master))};
}

nlohmann::ordered_json federation_cost_json(const FederationCost& cost) {
  return {{"members", cost.members},
          {"rounds", cost.rounds},
          {"received_bytes", cost.received_bytes},
          {"sent_bytes", cost.sent_bytes},
          {"coordinator_bytes", cost.coordinator_bytes()},
          {"coordinator_memory_bytes", cost.coordinator_memory_bytes}};
}

std::string federation_cost_text(const FederationCost& cost) {
  return concat("security.federation: in each of ", counted(cost.rounds, "round"), " of ", counted(cost.round_steps, "step"), " a member receives ",
                binary_bytes_text(cost.received_bytes), " of weights and sends ", binary_bytes_text(cost.sent_bytes),
                "; the coordinator sends and receives ", binary_bytes_text(cost.coordinator_bytes()), " and needs ",
                binary_bytes_text(cost.coordinator_memory_bytes), " beside its training state\n");
}

}  // namespace trireme
