#pragma once
// What `train` says of its own time before the first step.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "parallel/comm/communicator.h"
#include "trainer/plan/forecast.h"

namespace trireme {

struct RunForecast {
  Forecast time;       ///< without memory, which the run counts anyway
  std::string source;  ///< of the figures
};

/// By plan.cluster, or by the built-in figures of this machine's type: `gpu` is the driver's name of its GPU, empty on a CPU. Nothing for a GPU that is not built
/// in. Milliseconds. Errors: those of load_cluster; ConfigError where the cluster is not of as many devices as the run has ranks.
std::optional<RunForecast> forecast_run(const Config& config, int world, const std::string& gpu);

nlohmann::ordered_json forecast_json(const RunForecast& forecast);  ///< {"step_seconds", "step_low", "step_high", "mfu", "bubble", "figures"}
std::string forecast_text(const RunForecast& forecast);

/// Refuses a run whose ranks on one host need more than it has, each rank giving its forecast. Collective. Errors: ConfigError on all ranks.
void check_host_memory(Communicator& world, double bytes, double host_bytes);

}  // namespace trireme
