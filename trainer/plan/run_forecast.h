#pragma once
// Forecast of step time that `train` prints before the first step.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "parallel/comm/communicator.h"
#include "trainer/plan/forecast.h"

namespace trireme {

struct RunForecast {
  Forecast time;                     ///< without memory, which the run counts itself
  std::string source;                ///< source of the device and link figures
  std::optional<double> peak_flops;  ///< FLOP/s of all ranks, the denominator of MFU; nullopt for a CPU that was not measured
};

/// The built-in device type for a GPU name as reported by the driver, "" if there is none. "NVIDIA A100-SXM4-40GB" -> "A100-40GB". The built-in
/// figures are those of SXM modules: PCIe and NVL cards, Grace GPUs and MIG instances do not match.
std::string device_type_of(const std::string& gpu);

/// Forecast for the cluster of plan.cluster (file or built-in type), or for the built-in figures of this machine's type. `gpu`: the driver's name of
/// the GPU, empty on a CPU. For a built-in type the hosts have `ranks_per_host` devices. Takes milliseconds. Returns nullopt for a GPU that is not
/// built in and for ranks that share a GPU. Errors: those of load_cluster; ConfigError if the cluster file has fewer devices than the run has ranks.
std::optional<RunForecast> forecast_run(const Config& config, int world, int ranks_per_host, const std::string& gpu);

nlohmann::ordered_json forecast_json(const RunForecast& forecast);  ///< {"step_seconds", "step_low", "step_high", "mfu", "bubble", "figures"}
std::string forecast_text(const RunForecast& forecast);

/// Rejects a run whose ranks on one host need more memory than the host has. `bytes`: this rank's forecast; `host_bytes`: memory of `host`, its host.
/// Collective. Errors: ConfigError on all ranks.
void check_host_memory(Communicator& world, const std::string& host, double bytes, double host_bytes);

}  // namespace trireme
