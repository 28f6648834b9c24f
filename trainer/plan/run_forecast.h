#pragma once
// What `train` says of its own time before the first step.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "parallel/comm/communicator.h"
#include "trainer/plan/forecast.h"

namespace trireme {

struct RunForecast {
  Forecast time;                     ///< without memory, which the run counts anyway
  std::string source;                ///< of the figures
  std::optional<double> peak_flops;  ///< FLOP/s of all ranks together, what MFU is a share of; nothing for a CPU that was not measured
};

/// The built-in type whose figures hold for a GPU with this name of the driver's; "" where there is none. "NVIDIA A100-SXM4-40GB" -> "A100-40GB". The
/// figures are of SXM modules: PCIe and NVL cards, Grace's GPUs and parts of a GPU are other types.
std::string device_type_of(const std::string& gpu);

/// By plan.cluster, a file or a built-in type, or by the built-in figures of this machine's type: `gpu` is the driver's name of its GPU, empty on a
/// CPU. Of a built-in type the cluster is hosts of `ranks_per_host` devices. Nothing for a GPU that is not built in, ranks that share a GPU, or a step
/// that is not short enough. Milliseconds. Errors: those of
/// load_cluster; ConfigError where the file's cluster has fewer devices than the run has ranks.
std::optional<RunForecast> forecast_run(const Config& config, int world, int ranks_per_host, const std::string& gpu);

nlohmann::ordered_json forecast_json(const RunForecast& forecast);  ///< {"step_seconds", "step_low", "step_high", "mfu", "bubble", "figures"}
std::string forecast_text(const RunForecast& forecast);

/// Refuses a run whose ranks on one host need more than it has, each rank giving its forecast. Collective. Errors: ConfigError on all ranks.
void check_host_memory(Communicator& world, double bytes, double host_bytes);

}  // namespace trireme
