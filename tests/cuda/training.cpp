#include "tests/cuda/training.h"

#include <mutex>

#include "tests/cuda/gpu_ranks.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/machine/machine.h"

namespace trireme::test {

RunRecord train_on_gpus(const Config& config, int steps, int ranks_per_gpu, bool caching) {
  RunRecord record;
  std::mutex mutex;
  const Carrier carrier{ranks_per_gpu == 1, ranks_per_gpu, nccl_options(config), static_cast<int>(config.parallel.communication_sms), caching};
  run_gpu_ranks(mesh_shape(config.parallel).world(), carrier, [&](Communicator& world, Context& ctx) {
    RunRecord mine = train(ctx, world, config, steps);
    if (world.rank() != 0) return;
    const std::lock_guard lock(mutex);
    record = std::move(mine);
  });
  return record;
}

}  // namespace trireme::test
