#include "trainer/plan/place.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "kernels/core/dtype.h"
#include "trainer/config/check.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/machine/environment.h"
#include "trainer/machine/machine.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

int64_t world_of(const Config& config) { return config.parallel.tensor * config.parallel.pipeline * data_ranks(config.parallel); }

bool sets_key(const std::vector<std::string>& sets, const std::string& key) {
  return std::ranges::any_of(sets, [&](const std::string& set) { return set.starts_with(key + "="); });
}

Place open_place(const std::string& type, const std::string& source, const std::vector<std::string>& sets) {
  return {load_cluster(type, sets), source, !sets_key(sets, "nodes"), !sets_key(sets, "devices_per_node")};
}

Place this_machine(const Config& config, const std::vector<std::string>& sets) {
  constexpr int64_t kAnyMachine = 32;  // ranks that even a laptop can run, sharing cores
  const int64_t ranks = world_of(config), most = std::max<int64_t>(kAnyMachine, usable_cores());
  if (ranks > most)
    throw ConfigError(concat("run.device=", config.run.device, ": without --cluster this machine's CPU is assumed, for at most ", most,
                             " ranks, but the layout has ", ranks, " ranks; give --cluster FILE, or a built-in type such as --cluster H100"));
  Place place = open_place("cpu", "assumed: this machine's CPU, with built-in figures; --cluster selects another machine", sets);
  if (!place.as_many_devices)
    throw ConfigError(
        "--cluster-set devices_per_node: the assumed CPU machine takes any number of ranks, which share its cores; give --cluster FILE");
  ClusterConfig& cluster = place.cluster;
  cluster.devices_per_node = ranks;
  if (!cluster.device.cores) cluster.device.cores = usable_cores();
  if (!cluster.device.memory) cluster.device.memory = host_memory() / static_cast<double>(ranks);
  return place;
}

bool is_legal(const Config& config, std::optional<int64_t> devices) {
  try {
    resolve(config, devices);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

/// The first key that only describes runs of other systems and is not at its default; nullptr if there is none.
const char* foreign_key(const SoftwareConfig& software) {
  if (software.compiled) return "software.compiled";
  if (software.fp8 != "none") return "software.fp8";
  return software.context > 1 ? "software.context" : nullptr;
}

}  // namespace

Place named_place(const std::string& file_or_type, const std::vector<std::string>& sets) {
  if (is_built_in(file_or_type)) return open_place(file_or_type, "built-in nodes of type " + file_or_type, sets);
  return {load_cluster(file_or_type, sets), file_or_type};
}

Place assumed_place(const Config& config, const std::vector<std::string>& sets) {
  if (config.run.device == DeviceType::kCuda || (config.run.device == DeviceType::kAuto && usable_gpus() > 0))
    return open_place("H100", "assumed, because run.device selects GPUs; --cluster selects another machine", sets);
  return this_machine(config, sets);
}

void resolve_nodes(Place& place, const std::optional<std::string>& nodes, std::optional<int64_t> ranks, bool share) {
  ClusterConfig& c = place.cluster;
  const bool number = nodes && *nodes != "auto";
  if (number) c.nodes = std::stoll(*nodes);
  if (const ClusterConfig whole = resolve_cluster(c); share && ranks && whole.device.cores) c = with_ranks_sharing_cores(whole, *ranks);
  if (number || !(place.as_many_nodes || nodes)) return;
  if (!ranks) throw ConfigError("parallel.data=auto: depends on the number of nodes; give --nodes N, or a cluster file");
  if (*ranks > kMostDevices) throw ConfigError(concat("the layout has ", *ranks, " ranks; allowed: at most ", kMostDevices, " devices"));
  const bool part_of_one = *ranks < c.devices_per_node && (place.as_many_devices || nodes);
  if (!part_of_one && *ranks % c.devices_per_node != 0)
    throw ConfigError(concat("the layout's ", *ranks, " ranks do not fill nodes of ", c.devices_per_node,
                             " devices; choose degrees whose product is a multiple of ", c.devices_per_node, ", or change devices_per_node"));
  if (part_of_one) c.devices_per_node = *ranks;
  c.nodes = *ranks / c.devices_per_node;
}

void check_against_cluster(const Config& config, const ClusterConfig& cluster) {
  const Stack& stack = stack_of(cluster.software.stack);
  if (config.training.precision == Arithmetic::kFp64 && !cluster.device.cores)
    throw ConfigError(concat("training.precision=fp64: requires the CPU reference kernels, which device type ", cluster.device.type,
                             " does not have; allowed bf16, fp16, fp32, or a cluster with device.cores"));
  if (size_of(precision_of(config.training).compute) != 2 && !stack.own)
    throw ConfigError(concat("training.precision=", config.training.precision, ": software.stack ", stack.name,
                             " has figures for bf16 and fp16 only; allowed bf16, fp16, or stack ", stacks().front().name));
  if (config.parallel.collectives != Collectives::kLibrary && !cluster.device.cores)
    throw ConfigError(concat("parallel.collectives=", config.parallel.collectives, ": GPUs such as device type ", cluster.device.type,
                             " communicate through NCCL, which chooses its own algorithms; allowed library, or a cluster with device.cores"));
  const SoftwareConfig& software = cluster.software;
  if (const char* key = foreign_key(software); stack.own && key)
    throw ConfigError(
        concat(key, ": describes a run of another system, and Trireme has no such mode; allowed its default, or another software.stack"));
  const std::string& device = cluster.device.type;
  if (software.fp8 != "none" && (cluster.device.cores || device == "A100" || device == "A100-40GB"))
    throw ConfigError(
        concat("software.fp8=", software.fp8, ": device type ", device, " has no matrix products in fp8; allowed none, or a device that has"));
}

void set_device(Config& config, const ClusterConfig& cluster) {
  if (config.training.precision == Arithmetic::kFp64) return;  // runs on CPUs only, and the forecast for GPUs says so
  if (!cluster.device.cores)
    config.run.device = DeviceType::kCuda;
  else if (config.run.device == DeviceType::kCuda)
    config.run.device = DeviceType::kCpu;
}

bool allows_search(const Config& config, int64_t devices) {
  return (!config.parallel.data && is_legal(config, devices)) || is_legal(config, std::nullopt);
}

std::optional<Config> layout_on(const LoadedConfig& loaded, const Place& place, bool needed) {
  const int64_t devices = place.cluster.devices();
  const ParallelConfig& p = loaded.config.parallel;
  const int64_t model_ranks = p.islands * p.tensor * p.pipeline;
  if (!p.data && devices % model_ranks == 0) {
    try {
      return resolve(loaded, devices);
    } catch (const ConfigError&) {
      // A search tries other numbers of data ranks too, so that the file need not be right on this one.
      if (needed || !is_legal(loaded.config, std::nullopt)) throw;
      return std::nullopt;
    }
  }
  const Config config = resolve(loaded);
  if (p.data && world_of(config) == devices) return config;
  if (!needed) return std::nullopt;
  throw ConfigError(concat(loaded.sources.file, " parallel: ", islands_text(p), "tensor ", p.tensor, " x pipeline ", p.pipeline, " x data ",
                           *config.parallel.data, " = ", counted(world_of(config), "rank"), ", but the cluster (", place.source, ") has ",
                           counted(devices, "device"), ": ", counted(place.cluster.nodes, "node"), " of ", place.cluster.devices_per_node,
                           "; change nodes, or give --nodes auto, or --search"));
}

}  // namespace trireme
