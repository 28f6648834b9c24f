#pragma once
#include <memory>
#include <string>

#include "kernels/core/context.h"
#include "kernels/core/gpu.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"

namespace trireme {

/// Position of a rank among the ranks of its host.
struct RankPlace {
  int local_rank = 0;
  int local_size = 1;
  int threads = 0;  ///< CPU threads of the rank (OMP_NUM_THREADS); 0: its share of the host's cores
};

/// Number of GPUs this process can use; 0 without a driver or without CUDA in this build.
int usable_gpus();

/// Device and communicators of one rank: the CPU, or a GPU with NCCL or with transfers staged through host memory.
class Machine {
 public:
  /// Collective. Resolves run.device in `config`: auto becomes cuda if every rank has a GPU. GPU of a rank: local_rank / ranks_per_gpu,
  /// or the only visible one if the launcher shows each rank a different GPU.
  /// Errors: ConfigError, on all ranks: no driver, too few GPUs, too old a GPU, no CUDA in this build.
  Machine(std::unique_ptr<Communicator> host, const RankPlace& place, Config& config);
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
