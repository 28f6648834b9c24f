#pragma once
// What a job asks Slurm for: a pure function of the cluster, the run and the options of the command line.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/submit/cluster.h"

namespace trireme::submit {

/// Options of the command line, as given.
struct Request {
  std::optional<std::string> partition = {};
  std::optional<int64_t> nodes = {}, ranks_per_node = {}, cpus_per_rank = {};
  std::optional<std::string> gpu_type = {};
  std::optional<std::string> time = {};
  std::optional<int64_t> signal_seconds = {};
};

/// What the run needs.
struct RunNeeds {
  std::optional<int64_t> world;                  ///< number of ranks; nullopt: parallel.data is auto
  int64_t unit = 1;                              ///< an automatic number of ranks is a multiple of it
  OneOf<DeviceType> device = DeviceType::kAuto;  ///< run.device
  int64_t ranks_per_gpu = 1;
};

struct Allocation {
  std::string partition;
  int64_t nodes = 1, ranks_per_node = 1, cpus_per_rank = 1;
  int64_t gpus_per_node = 0;            ///< 0: the run uses none
  std::string gpu_type = {};            ///< empty: any
  bool whole_nodes = false;             ///< nothing of them is left for other jobs
  int64_t megabytes = 0;                ///< of memory per node that is the job's share; 0: Slurm does not count memory
  std::optional<int64_t> seconds = {};  ///< time limit; nullopt: that of the partition
  int64_t signal_seconds = 120;         ///< before the end of the time limit
  std::string mpi = "pmix";             ///< srun --mpi
  std::vector<std::string> notes = {};  ///< what a user should know before the job starts, a sentence each

  int64_t world() const { return nodes * ranks_per_node; }
};

/// Errors: ConfigError, naming option or key, if the cluster has no place for such a job.
Allocation allocate(const Cluster& cluster, const RunNeeds& needs, const Request& request);

/// Makes room for `bytes` of a rank that computes on the CPU: the job takes more than its share of a node's memory if it must. Errors: ConfigError if a
/// node has less.
void reserve_memory(Allocation& allocation, const Cluster& cluster, double bytes);

}  // namespace trireme::submit
