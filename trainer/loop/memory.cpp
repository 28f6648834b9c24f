#include "trainer/loop/memory.h"

#include <algorithm>
#include <sstream>

#include "kernels/core/gpu.h"
#include "parallel/comm/null.h"
#include "trainer/loop/agree.h"
#include "trainer/loop/trainer.h"

namespace trireme {
namespace {

/// Sequences that nobody reads.
struct UnreadDataset final : Dataset {
  explicit UnreadDataset(int64_t count) : count_(count) {}
  int64_t sequences() const override { return count_; }
  void read(int64_t /*sample*/, int32_t* /*tokens*/, int32_t* /*targets*/, std::vector<int64_t>& /*segments*/) const override {}

 private:
  int64_t count_;
};

/// Groups of this rank in which somebody else is.
int64_t groups_of_several(const Config& config, int rank) {
  int64_t count = 0;
  for (const MeshAxis axis : {MeshAxis::kWorld, MeshAxis::kPipeline, MeshAxis::kData, MeshAxis::kReplicate, MeshAxis::kShard, MeshAxis::kTensor,
                              MeshAxis::kKv, MeshAxis::kEmbedding})
    if (group_members(mesh_shape(config.parallel), axis, rank, static_cast<int>(*config.model.kv_heads)).size() > 1) ++count;
  return count;
}

}  // namespace

MemoryForecast forecast_memory(const Config& config, int rank, int world_size) {
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena, 1, nullptr};
  NullCommunicator world(rank, world_size, "world");
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  const UnreadDataset data(config.training.global_batch_size);
  // The second step meets buffers that the first has left; an evaluation meets both.
  for (int64_t step = 0; step < 2; ++step) trainer.step(data, step, config.training.optimizer.learning_rate);
  trainer.evaluate(data, 1);
  trainer.step(data, 2, config.training.optimizer.learning_rate);

  MemoryForecast forecast;
  for (size_t c = 0; c < kMemoryCategories; ++c) forecast.peak[c] = arena.peak_bytes(static_cast<MemoryCategory>(c));
  forecast.peak_total = arena.peak_bytes();
  forecast.arena_bytes = arena.system_bytes();
  return forecast;
}

MemoryForecast reserve_memory(Context& ctx, Communicator& world, const Config& config) {
  // Kernels are loaded at their first launch, and a communicator takes its buffers at its first collective: about 0.6 GB each was seen (NCCL issue 964).
  constexpr int64_t kKernels = int64_t{512} << 20, kCommunicator = int64_t{1} << 30;
  const int64_t libraries = kKernels + (config.run.ranks_per_gpu == 1 ? kCommunicator * groups_of_several(config, world.rank()) : 0);
  MemoryForecast forecast;
  agree(world, [&] {
    forecast = forecast_memory(config, world.rank(), world.size());
    const int64_t room = std::max<int64_t>(0, ctx.gpu->free_bytes() / config.run.ranks_per_gpu - libraries);
    if (forecast.arena_bytes > room)
      throw ConfigError(concat("this run needs ", forecast.arena_bytes, " bytes on the GPU (", ctx.gpu->properties().name, "), of which ", room,
                               " are free for this rank:\n", memory_table(forecast),
                               "smaller: training.micro_batch_size, a higher parallel.zero_stage, more parallel.tensor or parallel.pipeline ranks"));
  });
  world.barrier();  // ranks that share a GPU have all looked before one takes its part
  agree(world, [&] { ctx.arena->reserve(forecast.arena_bytes); });
  return forecast;
}

std::string memory_table(const MemoryForecast& forecast) {
  std::ostringstream table;
  const auto line = [&](const char* name, int64_t bytes) {
    table.width(16);
    table << name;
    table.width(18);
    table << bytes << "\n";
  };
  for (size_t c = 0; c < kMemoryCategories; ++c) line(name_of(static_cast<MemoryCategory>(c)), forecast.peak[c]);
  line("peak of the sum", forecast.peak_total);
  line("arena", forecast.arena_bytes);
  return table.str();
}

}  // namespace trireme
