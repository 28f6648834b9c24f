#include "tests/cuda/training.h"

#include <mutex>
#include <numeric>

#include "parallel/comm/nccl.h"
#include "parallel/comm/staged.h"
#include "tests/support/thread_ranks.h"

namespace trireme::test {

RunRecord train_on_gpus(const Config& config, int steps, int ranks_per_gpu) {
  RunRecord record;
  std::mutex mutex;
  const auto ranks = static_cast<int>(config.parallel.tensor * config.parallel.pipeline * *config.parallel.data);
  run_ranks(ranks, [&](Communicator& threads) {
    std::vector<int> all(static_cast<size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    cuda::Gpu gpu(threads.rank() / ranks_per_gpu, {});
    Arena arena(gpu, true);
    Context ctx{Device::kCuda, &arena, 1, &gpu};
    std::unique_ptr<Communicator> host = threads.group(all, "world");
    const std::unique_ptr<Communicator> world = ranks_per_gpu == 1 ? make_nccl_world(std::move(host), gpu) : make_staged_world(std::move(host), gpu);
    RunRecord mine = train(ctx, *world, config, steps);
    if (world->rank() != 0) return;
    const std::lock_guard lock(mutex);
    record = std::move(mine);
  });
  return record;
}

}  // namespace trireme::test
