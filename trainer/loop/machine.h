#pragma once
#include <memory>
#include <string>

#include "kernels/core/context.h"
#include "kernels/core/gpu.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"

namespace trireme {

/// Where a rank stands among those of its host.
struct RankPlace {
  int local_rank = 0;
  int local_size = 1;
  int threads = 0;  ///< that it is to compute with on CPUs (OMP_NUM_THREADS); 0: its part of the host's cores
};

/// GPUs this process can use; 0 where there is no driver or no CUDA in this build.
int usable_gpus();

/// What one rank computes on and talks through: the CPU, or a GPU with the communicators that reach it.
class Machine {
 public:
  /// Collective. Settles run.device in `config`: auto is cuda where every rank has a GPU. GPU of a rank: local_rank / ranks_per_gpu,
  /// or the only one it sees where its launcher shows every rank another.
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
