#include "trainer/plan/run_forecast.h"

#include <algorithm>
#include <iterator>
#include <sstream>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/files/table.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"
#include "trainer/plan/place.h"
#include "trainer/plan/reroute_cost.h"

namespace trireme {
namespace {

std::vector<std::string> words_of(std::string name) {
  std::ranges::replace(name, '-', ' ');
  std::istringstream stream(name);
  return {std::istream_iterator<std::string>(stream), {}};
}

/// A cluster of built-in devices, one per rank, with the hosts of the run.
ClusterConfig built_in_cluster(const std::string& type, int world, int ranks_per_host) {
  ClusterConfig cluster;
  cluster.device.type = type;
  cluster.devices_per_node = std::min(ranks_per_host, world);
  cluster.nodes = (world + cluster.devices_per_node - 1) / cluster.devices_per_node;
  if (type == "cpu") cluster.device.cores = usable_cores();
  return with_ranks_sharing_cores(resolve_cluster(cluster), world);
}

ClusterConfig cluster_of_file(const std::string& path, int world) {
  const ClusterConfig cluster = with_ranks_sharing_cores(resolve_cluster(load_cluster(path)), world);
  if (cluster.devices() < world)
    throw ConfigError(concat("plan.cluster=", path, ": has ", counted(cluster.devices(), "device"), ", but the run has ", counted(world, "rank"),
                             "; allowed: a cluster with at least as many devices, a built-in type, or none"));
  return cluster;
}

/// The forecast of a step that takes `times` as long for waits of its ranks.
void slow_down(Forecast& forecast, double times) {
  for (double* const seconds : {&forecast.step_seconds, &forecast.step_low, &forecast.step_high}) *seconds *= times;
  forecast.bubble = 1 - (1 - forecast.bubble) / times;
  for (double* const rate : {&forecast.tokens_per_second_per_device, &forecast.mfu, &forecast.mfu_full_attention}) *rate /= times;
}

}  // namespace

std::string device_type_of(const std::string& gpu) {
  const std::vector<std::string> words = words_of(gpu);
  const auto has = [&](const std::string& word) { return std::ranges::find(words, word) != words.end(); };
  for (const char* other : {"PCIe", "PCIE", "NVL", "MIG"})
    if (has(other)) return "";
  for (const std::string& type : device_types())  // A100-40GB precedes A100 in the list
    if (std::ranges::all_of(words_of(type), has)) return type;
  return "";
}

std::optional<RunForecast> forecast_run(const Config& config, int world, int ranks_per_host, const std::string& gpu) {
  RunForecast forecast;
  ClusterConfig cluster;
  const std::string& named = config.plan.cluster;
  if (config.run.ranks_per_gpu > 1) return std::nullopt;
  if (named != "none") {
    cluster = is_built_in(named) ? built_in_cluster(named, world, ranks_per_host) : cluster_of_file(named, world);
    forecast.source = "the figures of " + named;
  } else {
    const std::string type = gpu.empty() ? "cpu" : device_type_of(gpu);
    if (type.empty()) return std::nullopt;
    cluster = built_in_cluster(type, world, ranks_per_host);
    forecast.source = gpu.empty() ? "built-in figures of a CPU; for this machine's figures, run `trireme bench machine` and set plan.cluster"
                                  : "built-in figures of " + type;
  }
  check_against_cluster(config, cluster);
  forecast.time = forecast_time(config, cluster);
  if (const std::optional<RerouteCost> cost = reroute_cost(config, cluster))
    slow_down(forecast.time, cost->rerouted_seconds / cost->undisturbed_seconds);
  if (!cluster.device.cores || (named != "none" && !is_built_in(named))) forecast.peak_flops = world * peak_flops(config, cluster);
  return forecast;
}

nlohmann::ordered_json forecast_json(const RunForecast& forecast) {
  const Forecast& f = forecast.time;
  return {{"step_seconds", f.step_seconds}, {"step_low", f.step_low}, {"step_high", f.step_high}, {"mfu", f.mfu}, {"bubble", f.bubble},
          {"figures", forecast.source}};
}

std::string forecast_text(const RunForecast& forecast) {
  const Forecast& f = forecast.time;
  return concat("forecast: ", f.step_seconds, " s per step, range ", f.step_low, " to ", f.step_high, ", from ", forecast.source);
}

void check_host_memory(Communicator& world, const std::string& host, double bytes, double host_bytes) {
  double all = 0;
  int ranks = 0;
  for (const std::string& line : all_gather_strings(world, concat(bytes, " ", host))) {
    const size_t space = line.find(' ');
    if (line.substr(space + 1) != host) continue;
    all += std::stod(line.substr(0, space));
    ++ranks;
  }
  collectively(world, [&] {
    if (all > host_bytes)
      throw ConfigError(concat("the run does not fit: the ", counted(ranks, "rank"), " on ", host, " would take ", binary_bytes_text(all),
                               ", but the host has ", binary_bytes_text(host_bytes),
                               "; allowed: more hosts, a higher parallel.zero_stage, training.recompute full, or plan.must_fit false to start "
                               "anyway"));
  });
}

}  // namespace trireme
