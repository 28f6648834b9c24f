#pragma once
// Simulates a step of a configuration on every rank of its world.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/world.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// Cost of each action of `plans` (= lowered_schedule(config)), in seconds. Compute: per part of the model, as in step_costs. Gathers and reductions:
/// by the bytes of their units; the share that published runs do not hide stalls the compute. software.straggler slows the first rank of the
/// pipeline rank that the forecast slows. `config` and `cluster` are resolved.
/// Errors: ConfigError if several ranks share a core, because the simulator's ranks have independent clocks and cannot fill each other's waits.
WorldCosts world_costs(const Config& config, const ClusterConfig& cluster, const LoweredSchedule& plans);

struct SimulatedWorld {
  int64_t ranks = 0, actions = 0;  ///< actions of one step
  WorldSimulation step;            ///< without norm, update and host time
  /// On GPUs, what NCCL's order of operations adds (parallel/pipeline/launch_order.h): the step's seconds with it, with the mean of what outer steps
  /// lose in a round, and what waits behind what.
  struct LaunchOrder {
    double step_seconds;
    std::vector<std::string> edges;
  };
  std::optional<LaunchOrder> launch_order = {};  ///< empty on CPUs, and where nothing waits
};
/// Simulates the lists of `plans` (= lowered_schedule(config)), which also proves that they cannot deadlock. Errors: those of world_costs and
/// simulate_world.
SimulatedWorld simulate_step(const Config& config, const ClusterConfig& cluster, const LoweredSchedule& plans, const std::vector<int>& traced = {});

/// Step time and the ranks' mean wait times by cause.
std::string world_text(const SimulatedWorld& world);
/// {"ranks", "actions", "step_seconds", "deadlock_free", "compute_seconds": mean over ranks, "waits": {cause: mean seconds}, and where it adds something
/// "launch_order": {"step_seconds", "edges": [text]}}.
nlohmann::ordered_json world_json(const SimulatedWorld& world);

}  // namespace trireme
