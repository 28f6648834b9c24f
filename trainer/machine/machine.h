#pragma once
#include <filesystem>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/context.h"
#include "kernels/core/gpu.h"
#include "parallel/comm/nccl.h"
#include "trainer/config/config.h"

namespace trireme {

/// Position of a rank among the ranks of its host.
struct RankPlace {
  int local_rank = 0;
  int local_size = 1;
  int threads = 0;                   ///< CPU threads of the rank (OMP_NUM_THREADS); 0: its share of the host's cores
  std::vector<int> host_ranks = {};  ///< world ranks on this host, in order; empty: all ranks

  bool has_other_hosts(int world_size) const { return !host_ranks.empty() && std::ssize(host_ranks) < world_size; }
};

/// Number of GPUs this process can use; 0 without a driver or without CUDA in this build.
int usable_gpus();

NcclOptions nccl_options(const Config& config);

/// Whether a run with this run.device may compute on GPUs. Does not call CUDA.
bool may_use_gpus(const OneOf<DeviceType>& device);

struct MachineOptions {
  std::filesystem::path device_files = "/dev";  ///< where the NVIDIA driver makes the files of its GPUs
  bool world_is_encrypted = false;              ///< with_encryption() has wrapped the world
  bool may_ignore_gpus = false;                 ///< for commands without run.device: auto takes CPUs where GPUs exist that not every rank can use
};

/// Device and communicators of one rank: the CPU, or a GPU with NCCL or with transfers staged through host memory.
class Machine {
 public:
  /// Collective. Resolves run.device in `config`: auto becomes cuda if every rank has a GPU, and cpu if no host of the job has one. GPU of a rank:
  /// local_rank / ranks_per_gpu, or the only visible one if the launcher shows each rank a different GPU or MIG instance.
  /// Encrypts as with_encryption() does.
  /// Errors: ConfigError, on all ranks: no driver, too few GPUs, too old a GPU, no CUDA in this build; with auto also if a host has GPUs; those of
  /// with_encryption().
  Machine(std::unique_ptr<Communicator> host, const RankPlace& place, Config& config, const MachineOptions& options = {});
  ~Machine();

  Context& ctx() { return ctx_; }
  Communicator& world() { return *world_; }

 private:
  void open_gpu(const RankPlace& place, int index, const Config& config);

  std::unique_ptr<cuda::Gpu> gpu_;  ///< outlives arena and communicators
  std::unique_ptr<Arena> arena_;
  std::unique_ptr<Communicator> world_;
  Context ctx_;
};

}  // namespace trireme
