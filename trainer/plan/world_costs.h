#pragma once
// The step of a configuration on every rank of its world, in the simulator.
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "parallel/pipeline/world.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// Seconds of each action of `plans` (lowered_schedule(config)): compute by part of the model, as step_costs reckons it; gathers and reductions by the
/// bytes of their units, the share of theirs that published runs do not hide taken from the compute. software.straggler slows the first rank of the
/// pipeline rank that the forecast slows. `config` and `cluster` are resolved.
/// Errors: ConfigError where ranks take turns on cores: each would fill the waits of others, which ranks with a clock of their own do not.
WorldCosts world_costs(const Config& config, const ClusterConfig& cluster, const LoweredSchedule& plans);

struct SimulatedWorld {
  int64_t ranks = 0, actions = 0;  ///< of one step
  WorldSimulation step;            ///< norm, update and host apart
};
/// `plans` are lowered_schedule(config). Also proves that the lists cannot deadlock. Errors: those of world_costs and simulate_world.
SimulatedWorld simulate_step(const Config& config, const ClusterConfig& cluster, const LoweredSchedule& plans, const std::vector<int>& traced = {});

/// Step, how the waits of the ranks divide by cause, and the ranks that are last.
std::string world_text(const SimulatedWorld& world);
/// {"ranks", "actions", "step_seconds", "deadlock_free", "compute_seconds": mean over ranks, "waits": {cause: mean seconds}}.
nlohmann::ordered_json world_json(const SimulatedWorld& world);

}  // namespace trireme
