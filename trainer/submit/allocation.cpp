#include "trainer/submit/allocation.h"

#include <algorithm>
#include <cmath>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/config/fields.h"
#include "trainer/files/printable.h"
#include "trainer/files/table.h"

namespace trireme::submit {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text.empty() ? "none" : text;
}

const Partition& partition_of(const Cluster& cluster, const Request& request) {
  std::vector<std::string> names;
  for (const Partition& one : cluster.partitions) names.push_back(one.name);
  if (!request.partition) {
    const auto found = std::ranges::find(cluster.partitions, true, &Partition::is_default);
    if (found == cluster.partitions.end()) throw ConfigError(concat("--partition: this cluster has no default partition; allowed ", joined(names)));
    return *found;
  }
  const auto found = std::ranges::find(cluster.partitions, *request.partition, &Partition::name);
  if (found != cluster.partitions.end()) return *found;
  throw ConfigError(concat("--partition: \"", printable(*request.partition), "\" is no partition of this cluster; allowed ", joined(names),
                           "; nearest ", nearest_word(*request.partition, names)));
}

std::vector<std::string> gpu_types_of(const Partition& partition) {
  std::vector<std::string> types;
  for (const NodeGroup& group : partition.groups)
    for (const GpuCount& gpu : group.gpus)
      if (std::ranges::count(types, gpu.type) == 0) types.push_back(gpu.type);
  return types;
}

/// Decides whether the job takes GPUs, and of which type if there are several.
void choose_gpus(const Cluster& cluster, const Partition& partition, const RunNeeds& needs, const Request& request, Allocation& out, bool& gpus) {
  const std::vector<std::string> types = gpu_types_of(partition);
  gpus = needs.device == DeviceType::kCuda || (needs.device == DeviceType::kAuto && !types.empty());
  if (!gpus && request.gpu_type)
    throw ConfigError(concat("--gpu-type: the run uses no GPU (run.device=", needs.device, ", partition ", partition.name, ")"));
  if (!gpus) return;
  if (types.empty()) {
    std::vector<std::string> others;
    for (const Partition& other : cluster.partitions)
      if (!gpu_types_of(other).empty()) others.push_back(other.name);
    throw ConfigError(concat("run.device=cuda: no node of partition ", partition.name, " has GPUs; allowed --partition ", joined(others)));
  }
  if (request.gpu_type) {
    if (std::ranges::count(types, *request.gpu_type) == 0)
      throw ConfigError(concat("--gpu-type: partition ", partition.name, " has no GPUs of type \"", printable(*request.gpu_type), "\"; allowed ",
                               joined(types), "; nearest ", nearest_word(*request.gpu_type, types)));
    out.gpu_type = *request.gpu_type;
  } else if (types.size() > 1) {
    const auto nodes_with = [&](const std::string& type) {
      int sum = 0;
      for (const NodeGroup& group : partition.groups) sum += group.gpus_of(type) > 0 ? group.nodes : 0;
      return sum;
    };
    out.gpu_type = *std::ranges::max_element(types, {}, nodes_with);
    out.notes.push_back(concat("partition ", partition.name, " has GPUs of several types, ", joined(types), "; the job takes ", out.gpu_type,
                               " (--gpu-type chooses)"));
  }
}

/// The hardware of the nodes that the job is laid out for: of the kind of which there are most.
NodeGroup node_of(const Partition& partition, bool gpus, const std::string& gpu_type) {
  const auto fits = [&](const NodeGroup& group) { return !gpus || group.gpus_of(gpu_type) > 0; };
  const auto same = [&](const NodeGroup& a, const NodeGroup& b) { return a.cpus == b.cpus && a.gpus_of(gpu_type) == b.gpus_of(gpu_type); };
  NodeGroup best;
  for (const NodeGroup& group : partition.groups) {
    if (!fits(group)) continue;
    NodeGroup all = group;
    all.nodes = 0;
    for (const NodeGroup& other : partition.groups)
      if (fits(other) && same(group, other)) {
        all.nodes += other.nodes;
        all.megabytes = std::min(all.megabytes, other.megabytes);
      }
    if (all.nodes > best.nodes) best = all;
  }
  if (best.nodes == 0) throw ConfigError(concat("--partition: partition ", partition.name, " has no nodes"));
  return best;
}

/// Nodes that have at least the hardware of `node`.
int64_t nodes_like(const Partition& partition, const NodeGroup& node, const std::string& gpu_type, bool gpus, bool in_service) {
  int64_t sum = 0;
  for (const NodeGroup& group : partition.groups)
    if (group.cpus >= node.cpus && (!gpus || group.gpus_of(gpu_type) >= node.gpus_of(gpu_type)) && (!in_service || group.in_service()))
      sum += group.nodes;
  return sum;
}

/// The node counts that divide `world` into at most `capacity` ranks a node, nearest to `nodes`.
std::string nearest_nodes(int64_t world, int64_t capacity, int64_t nodes) {
  std::string text;
  const auto fits = [&](int64_t n) { return world % n == 0 && world / n <= capacity; };
  for (int64_t n = std::min(nodes - 1, world); n >= 1; --n)
    if (fits(n)) {
      text = std::to_string(n);
      break;
    }
  for (int64_t n = nodes + 1; n <= world; ++n)
    if (fits(n)) return text + (text.empty() ? "" : " or ") + std::to_string(n);
  return text;
}

/// Chooses nodes and ranks per node for a given number of ranks.
void divide(int64_t world, int64_t capacity, const std::string& place, const Request& request, Allocation& out) {
  if (request.nodes && request.ranks_per_node && *request.nodes * *request.ranks_per_node != world)
    throw ConfigError(concat("--nodes: ", *request.nodes, " nodes of ", *request.ranks_per_node, " ranks are ",
                             *request.nodes * *request.ranks_per_node, " ranks, but the configuration has ", world,
                             "; give one of --nodes and --ranks-per-node"));
  if (request.ranks_per_node && world % *request.ranks_per_node != 0)
    throw ConfigError(
        concat("--ranks-per-node: ", world, " ranks do not divide into ", *request.ranks_per_node, " a node; allowed divisors of ", world));
  if (request.nodes && (world % *request.nodes != 0 || world / *request.nodes > capacity)) {
    const std::string why = world % *request.nodes != 0 ? concat(world, " ranks do not divide evenly over ", counted(*request.nodes, "node"))
                                                        : concat(world / *request.nodes, " ranks a node, but ", place);
    throw ConfigError(concat("--nodes: ", why, "; allowed divisors of ", world, " with at most ", capacity, " ranks a node; nearest ",
                             nearest_nodes(world, capacity, *request.nodes)));
  }
  out.ranks_per_node = request.ranks_per_node ? *request.ranks_per_node : request.nodes ? world / *request.nodes : std::min(world, capacity);
  while (world % out.ranks_per_node != 0) --out.ranks_per_node;
  out.nodes = world / out.ranks_per_node;
}

void choose_time(const Partition& partition, const Request& request, Allocation& out) {
  if (request.time) {
    out.seconds = seconds_of(*request.time);
    if (!out.seconds || *out.seconds < 1)
      throw ConfigError(concat("--time: \"", printable(*request.time),
                               "\" is not a time; allowed MINUTES | MINUTES:SECONDS | HOURS:MINUTES:SECONDS | ",
                               "DAYS-HOURS | DAYS-HOURS:MINUTES | DAYS-HOURS:MINUTES:SECONDS"));
    if (partition.max_seconds && *out.seconds > *partition.max_seconds)
      throw ConfigError(concat("--time: ", *request.time, " is over the limit of partition ", partition.name, "; allowed up to ",
                               slurm_time(*partition.max_seconds)));
  }
  constexpr int64_t kResolution = 60;  // Slurm may send the signal this much earlier
  const std::optional<int64_t> limit = out.seconds ? out.seconds : partition.default_seconds ? partition.default_seconds : partition.max_seconds;
  if (request.signal_seconds) {
    out.signal_seconds = *request.signal_seconds;
    if (limit && out.signal_seconds + kResolution >= *limit)
      throw ConfigError(concat("--signal: ", out.signal_seconds, " s before the end of ", slurm_time(*limit), " may be at once, as Slurm is up to ",
                               kResolution, " s early; allowed ",
                               *limit > kResolution + 1 ? concat("1 to ", *limit - kResolution - 1) : "a longer --time"));
  } else if (limit) {
    out.signal_seconds = std::clamp<int64_t>(*limit / 4, 1, out.signal_seconds);
  }
  if (partition.preempt_mode != "OFF" && partition.grace_seconds < out.signal_seconds)
    out.notes.push_back(concat("jobs of partition ", partition.name, " may be preempted with ", partition.grace_seconds,
                               " s of notice; a step and a save that take longer are repeated from the checkpoint before"));
}

/// The device of a rank on a node: how many ranks can it have?
int64_t capacity_of(const NodeGroup& node, bool gpus, const RunNeeds& needs, const Request& request, const Allocation& out) {
  const int64_t by_cpus = node.cpus / request.cpus_per_rank.value_or(1);
  if (by_cpus < 1)
    throw ConfigError(
        concat("--cpus-per-rank: ", *request.cpus_per_rank, " is more than a node of partition ", out.partition, " has; allowed 1 to ", node.cpus));
  return gpus ? std::min(by_cpus, node.gpus_of(out.gpu_type) * needs.ranks_per_gpu) : by_cpus;
}

void choose_ranks(const NodeGroup& node, bool gpus, const RunNeeds& needs, const Request& request, Allocation& out) {
  const int64_t capacity = capacity_of(node, gpus, needs, request, out);
  const std::string place = concat("the nodes of partition ", out.partition, " have ",
                                   gpus ? counted(node.gpus_of(out.gpu_type), "GPU") : counted(node.cpus, "CPU"), " each");
  if (request.ranks_per_node && *request.ranks_per_node > capacity)
    throw ConfigError(concat("--ranks-per-node: ", *request.ranks_per_node, ", but ", place, "; allowed 1 to ", capacity));
  if (needs.world) return divide(*needs.world, capacity, place, request, out);
  out.nodes = request.nodes.value_or(1);
  if (!request.ranks_per_node && !gpus)
    throw ConfigError("--ranks-per-node: parallel.data is auto, so the job decides the number of ranks; allowed 1 to " + std::to_string(capacity));
  out.ranks_per_node = request.ranks_per_node.value_or(capacity);
  if (out.world() % needs.unit != 0)
    throw ConfigError(concat("--nodes: ", counted(out.nodes, "node"), " of ", out.ranks_per_node,
                             " ranks, but with parallel.data=auto the number of ranks must be ", "a multiple of ", needs.unit,
                             " (islands x tensor x pipeline)"));
}

/// What the job takes of a node: GPUs, CPUs, memory.
void choose_share(const NodeGroup& node, bool gpus, const RunNeeds& needs, const Request& request, Allocation& out) {
  if (gpus) out.gpus_per_node = (out.ranks_per_node + needs.ranks_per_gpu - 1) / needs.ranks_per_gpu;
  const int64_t all_gpus = node.gpus_of(out.gpu_type);
  const int64_t share = gpus ? std::max<int64_t>(node.cpus / (all_gpus * needs.ranks_per_gpu), 1) : node.cpus / out.ranks_per_node;
  out.cpus_per_rank = request.cpus_per_rank.value_or(share);
  if (out.ranks_per_node * out.cpus_per_rank > node.cpus) out.cpus_per_rank = node.cpus / out.ranks_per_node;
  out.whole_nodes = gpus ? out.gpus_per_node == all_gpus : node.cpus - out.ranks_per_node * out.cpus_per_rank < out.ranks_per_node;
  if (node.megabytes > 1) {  // 1 is Slurm's default where nobody has configured the memory
    const double part = std::max(static_cast<double>(out.ranks_per_node * out.cpus_per_rank) / node.cpus,
                                 gpus ? static_cast<double>(out.gpus_per_node) / static_cast<double>(all_gpus) : 0);
    out.megabytes = std::max<int64_t>(1, static_cast<int64_t>(static_cast<double>(node.megabytes) * std::min(part, 1.0)));
  }
}

void choose_mpi(const Cluster& cluster, Allocation& out) {
  const auto pmix = std::ranges::find_if(cluster.mpi, [](const std::string& one) { return one == "pmix" || one.starts_with("pmix_"); });
  if (pmix == cluster.mpi.end())
    throw ConfigError(concat("srun --mpi: MPI needs pmix, and this Slurm has only ", joined(cluster.mpi), "; ask for its PMIx plugin"));
  out.mpi = std::ranges::count(cluster.mpi, "pmix") > 0 ? "pmix" : *pmix;
}

}  // namespace

Allocation allocate(const Cluster& cluster, const RunNeeds& needs, const Request& request) {
  const Partition& partition = partition_of(cluster, request);
  Allocation out{.partition = partition.name};
  bool gpus = false;
  choose_gpus(cluster, partition, needs, request, out, gpus);
  const NodeGroup node = node_of(partition, gpus, out.gpu_type);
  choose_ranks(node, gpus, needs, request, out);
  const int64_t existing = nodes_like(partition, node, out.gpu_type, gpus, false),
                most = std::min<int64_t>(existing, partition.max_nodes.value_or(1 << 30));
  if (out.nodes > most)
    throw ConfigError(concat("--nodes: ", out.world(), " ranks need ", counted(out.nodes, "node"), " of ", out.ranks_per_node,
                             " ranks; allowed in partition ", partition.name, ": ", counted(most, "node"),
                             most < existing ? " a job (MaxNodes)" : ""));
  const int64_t up = nodes_like(partition, node, out.gpu_type, gpus, true);
  if (out.nodes > up)
    out.notes.push_back(
        concat("of the ", counted(existing, "node"), " only ", up, up == 1 ? " is" : " are", " in service now; the job waits for more"));
  if (partition.state != "UP") out.notes.push_back(concat("partition ", partition.name, " is ", partition.state, "; the job waits until it is UP"));

  choose_share(node, gpus, needs, request, out);
  choose_time(partition, request, out);
  choose_mpi(cluster, out);
  return out;
}

void reserve_memory(Allocation& allocation, const Cluster& cluster, double bytes) {
  constexpr double kMegabyte = 1 << 20, kRuntime = 256 * kMegabyte, kWorkspace = 1.1;  // of libraries and MPI, and of what the forecast leaves out
  if (allocation.megabytes == 0 || allocation.gpus_per_node > 0) return;
  const auto partition = std::ranges::find(cluster.partitions, allocation.partition, &Partition::name);
  TRIREME_CHECK(partition != cluster.partitions.end(), allocation.partition);
  const NodeGroup node = node_of(*partition, false, "");
  const auto needed = static_cast<int64_t>(std::ceil(static_cast<double>(allocation.ranks_per_node) * (bytes * kWorkspace + kRuntime) / kMegabyte));
  if (needed > node.megabytes) {
    const int64_t fit = static_cast<int64_t>(static_cast<double>(node.megabytes) * kMegabyte / (bytes * kWorkspace + kRuntime));
    throw ConfigError(concat("--nodes: ", allocation.ranks_per_node, " ranks a node need ",
                             binary_bytes_text(static_cast<double>(needed) * kMegabyte), " of memory, and the nodes of partition ",
                             allocation.partition, " have ", binary_bytes_text(static_cast<double>(node.megabytes) * kMegabyte), "; allowed at most ",
                             fit, " ranks a node"));
  }
  allocation.megabytes = std::max(allocation.megabytes, needed);
}

}  // namespace trireme::submit
