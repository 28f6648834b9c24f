#pragma once
// What a Slurm cluster has, as values: parsed from what its own commands print.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace trireme::submit {

/// Generic resources of one name and type on a node, such as "gpu:a100:8".
struct GpuCount {
  std::string type;  ///< empty if the cluster names none
  int count = 0;
  bool operator==(const GpuCount&) const = default;
};

/// Nodes of a partition that have the same hardware and state.
struct NodeGroup {
  int nodes = 0;
  int cpus = 1;           ///< of a node, as Slurm counts them
  int64_t megabytes = 0;  ///< of a node's memory
  std::vector<GpuCount> gpus = {};
  std::string state = {};  ///< as sinfo abbreviates it: "idle", "mix", "down*"

  /// False for nodes that are down, drained or do not answer.
  bool in_service() const;
  int gpus_of(const std::string& type) const;  ///< of all types if `type` is empty
};

struct Partition {
  std::string name;
  bool is_default = false;
  std::string state = "UP";                     ///< "DOWN", "INACTIVE" and "DRAIN" start no job
  std::optional<int64_t> max_seconds = {};      ///< nullopt: no limit
  std::optional<int64_t> default_seconds = {};  ///< of a job without --time; nullopt: max_seconds
  std::optional<int> max_nodes = {};            ///< of a job; nullopt: no limit
  std::string preempt_mode = "OFF";
  int64_t grace_seconds = 0;  ///< between the notice of a preemption and its end
  std::vector<NodeGroup> groups = {};

  int nodes() const;
};

struct Cluster {
  std::vector<Partition> partitions = {};
  std::vector<std::string> mpi = {};  ///< plugins of `srun --mpi`
  int64_t max_array_size = 1001;      ///< elements of an array have smaller numbers
};

/// "gpu:a100:4(S:0-1),shard:16" -> {{"a100", 4}}; "gpu:2" has no type. Other resources are left out.
std::vector<GpuCount> gpus_in(const std::string& gres);

/// Seconds of a time as Slurm writes and reads it: "90" (minutes), "90:30", "1:30:00", "2-12", "2-12:30", "2-12:30:00". nullopt if it is none of these.
std::optional<int64_t> seconds_of(const std::string& text);
/// "1:30:00", "2-12:00:00".
std::string slurm_time(int64_t seconds);

/// The numbers of a job array: "0-5", "1,3,5-9:2", each with an optional "%4", the most that run at a time. Errors: ConfigError, naming --array, if it
/// is something else or has a number that is not below `max_size`, or occurs twice.
std::vector<int64_t> array_indices(const std::string& text, int64_t max_size);

/// From `scontrol show partition --oneliner`. Errors: DataError if a line is no partition.
std::vector<Partition> partitions_in(const std::string& text);
/// Adds the nodes of `sinfo --noheader --exact --format=kNodeFormat`. Errors: DataError.
inline constexpr const char* kNodeFormat = "%R|%D|%c|%m|%G|%t";
void add_nodes(std::vector<Partition>& partitions, const std::string& text);
/// From `srun --mpi=list`.
std::vector<std::string> mpi_plugins_in(const std::string& text);
/// MaxArraySize of `scontrol show config`; nullopt if it is not there.
std::optional<int64_t> max_array_size_in(const std::string& text);

/// Asks the commands of Slurm. Errors: MissingFileError if one of them is not in PATH; IoError if one fails.
Cluster find_cluster();

}  // namespace trireme::submit
