#include "trainer/plan/run_forecast.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/bench/table.h"
#include "trainer/loop/agree.h"
#include "trainer/loop/environment.h"

namespace trireme {
namespace {

/// The type whose name the driver's holds; A100-40GB stands before A100.
std::string type_of(const std::string& gpu) {
  for (const std::string& type : device_types()) {
    const size_t dash = type.find('-');
    const bool named = gpu.find(type.substr(0, dash)) != gpu.npos;
    if (named && (dash == type.npos || gpu.find(type.substr(dash + 1)) != gpu.npos)) return type;
  }
  return "";
}

/// As many built-in devices as the run has ranks.
ClusterConfig built_in_cluster(const std::string& type, int world) {
  ClusterConfig cluster;
  cluster.device.type = type;
  if (type == "cpu") cluster.device.cores = usable_cores();
  cluster = shared_by(resolve_cluster(cluster), world);
  if (cluster.device.cores) return cluster;
  cluster.devices_per_node = std::min<int64_t>(cluster.devices_per_node, world);
  cluster.nodes = (world + cluster.devices_per_node - 1) / cluster.devices_per_node;
  return cluster;
}

}  // namespace

std::optional<RunForecast> forecast_run(const Config& config, int world, const std::string& gpu) {
  RunForecast forecast;
  ClusterConfig cluster;
  if (config.plan.cluster != "none") {
    cluster = shared_by(resolve_cluster(load_cluster(config.plan.cluster)), world);
    if (cluster.devices() < world)
      throw ConfigError(concat("plan.cluster=", config.plan.cluster, ": has ", cluster.devices(), " devices, and the run ", world,
                               " ranks; allowed: a cluster of that many, or none"));
    forecast.source = "the figures of " + config.plan.cluster;
  } else {
    const std::string type = gpu.empty() ? "cpu" : type_of(gpu);
    if (type.empty()) return std::nullopt;
    cluster = built_in_cluster(type, world);
    forecast.source = gpu.empty() ? "built-in figures of a CPU; `trireme bench machine` measures this one for plan.cluster" : "built-in figures of " + type;
  }
  forecast.time = forecast_time(config, cluster);
  return forecast;
}

nlohmann::ordered_json forecast_json(const RunForecast& forecast) {
  const Forecast& f = forecast.time;
  return {{"step_seconds", f.step_seconds}, {"step_low", f.step_low}, {"step_high", f.step_high},
          {"mfu", f.mfu},                   {"bubble", f.bubble},     {"figures", forecast.source}};
}

std::string forecast_text(const RunForecast& forecast) {
  const Forecast& f = forecast.time;
  return concat("forecast: ", f.step_seconds, " s a step, from ", f.step_low, " to ", f.step_high, ", by ", forecast.source);
}

void check_host_memory(Communicator& world, double bytes, double host_bytes) {
  const std::string host = host_name();
  double all = 0;
  int ranks = 0;
  for (const std::string& line : all_gather_strings(world, concat(bytes, " ", host))) {
    const size_t space = line.find(' ');
    if (line.substr(space + 1) != host) continue;
    all += std::stod(line.substr(0, space));
    ++ranks;
  }
  agree(world, [&] {
    if (all > host_bytes)
      throw ConfigError(concat("the run does not fit: the ", ranks, ranks == 1 ? " rank on " : " ranks on ", host, " would take ", bench::bytes_text(all), ", and it has ",
                               bench::bytes_text(host_bytes),
                               "; allowed: more hosts, a higher parallel.zero_stage, training.recompute full, or plan.must_fit false to start it nonetheless"));
  });
}

}  // namespace trireme
