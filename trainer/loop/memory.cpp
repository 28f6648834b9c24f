#include "trainer/loop/memory.h"

#include <algorithm>
#include <cstring>
#include <iostream>

#include "kernels/core/gpu.h"
#include "parallel/comm/null.h"
#include "trainer/loop/memory_table.h"
#include "trainer/loop/recompute.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/collectively.h"

namespace trireme {
namespace {

/// A data set whose content is never read.
struct UnreadDataset final : Dataset {
  explicit UnreadDataset(int64_t count) : count_(count) {}
  int64_t sequences() const override { return count_; }
  void read(int64_t /*sample*/, int32_t* /*tokens*/, int32_t* /*targets*/, std::vector<int64_t>& /*segments*/) const override {}

 private:
  int64_t count_;
};

/// Bytes that this rank sends in a step to reduce gradients.
double reduced_bytes(const Trainer& trainer, const Config& config) {
  const ZeroPolicy policy = zero_policy(config.parallel);
  double bytes = 0;
  for (const Action& action : trainer.program().training_list()) {
    const bool scatter = action.type == ActionType::kReduceGrads, replicas = action.type == ActionType::kReduceReplicas;
    if (!scatter && !replicas) continue;
    const TransformerStage& stage = **std::ranges::find(trainer.stages(), action.stage, [](const auto& one) { return one->range().stage; });
    const int64_t owned = stage.params().units()[static_cast<size_t>(action.unit)]->shard_numel();
    bytes += stage.grads().reducer().sent_bytes(scatter ? Reduction::Kind::kScatter : Reduction::Kind::kReplicas, action.unit, owned,
                                                scatter ? policy.shard : policy.replicate);
  }
  return bytes;
}

void raise(MemoryPeaks& most, const MemoryPeaks& other) {
  for (size_t c = 0; c < kMemoryCategories; ++c) most.peak[c] = std::max(most.peak[c], other.peak[c]);
  most.peak_total = std::max(most.peak_total, other.peak_total);
}

}  // namespace

RankMemory forecast_memory(const Config& config, int rank, int world_size) {
  return forecast_memory(config, rank, world_size, recompute_policy(config));
}

RankMemory forecast_memory(const Config& config, int rank, int world_size, const std::vector<Recompute>& recompute) {
  return forecast_memory(config, rank, world_size, recompute, lowered_schedule(config));
}

RankMemory forecast_memory(const Config& config, int rank, int world_size, const std::vector<Recompute>& recompute, const LoweredSchedule& schedule) {
  Arena arena(Device::kMeta);
  Context ctx{.device = Device::kMeta, .arena = &arena, .for_gpu = config.run.device == DeviceType::kCuda};
  ctx.cudnn_attention = config.kernels.attention == AttentionEngine::kCudnn;
  NullCommunicator world(rank, world_size, "world");
  Trainer trainer(ctx, world, config, true, recompute, schedule);
  if (config.resilience.rebalance == Rebalance::kMicroBatches) trainer.set_micro_batches(largest_split(config, trainer.batches().data_rank()));
  trainer.initialise();
  const UnreadDataset data(config.training.global_batch_size);
  // The second step runs beside buffers that the first has left, and the evaluation beside those of both.
  for (int64_t step = 0; step < 2; ++step) trainer.step(data, step, config.training.optimizer.learning_rate);
  arena.set_phase(MemoryPhase::kSave);  // a save only copies to the host
  trainer.evaluate(data, 1);
  if (config.observe.samples.every > 0) trainer.continuation_logits(std::vector<int32_t>(static_cast<size_t>(trainer.text_room())));  // the longest
  trainer.step(data, 2, config.training.optimizer.learning_rate);
  RankMemory forecast = measured_memory(arena);
  forecast.reduced_bytes = reduced_bytes(trainer, config);
  forecast.outer_bytes = trainer.updates().outer_bytes();
  forecast.server_bytes = trainer.updates().server_bytes();
  return forecast;
}

RankMemory measured_memory(const Arena& arena) {
  RankMemory memory;
  for (size_t c = 0; c < kMemoryCategories; ++c) memory.peak[c] = arena.peak_bytes(static_cast<MemoryCategory>(c));
  memory.peak_total = arena.peak_bytes();
  for (size_t p = 0; p < kMemoryPhases; ++p) {
    const auto phase = static_cast<MemoryPhase>(p);
    for (size_t c = 0; c < kMemoryCategories; ++c) memory.phases[p].peak[c] = arena.peak_bytes(phase, static_cast<MemoryCategory>(c));
    memory.phases[p].peak_total = arena.peak_bytes(phase);
  }
  memory.arena_bytes = arena.system_bytes();
  return memory;
}

std::vector<RankMemory> memory_by_pipeline_rank(Communicator& world, const MeshShape& shape, const RankMemory& mine) {
  std::vector<RankMemory> most(static_cast<size_t>(shape.pipeline));
  const std::vector<std::string> all = all_gather_strings(world, {reinterpret_cast<const char*>(&mine), sizeof mine});
  for (int rank = 0; rank < world.size(); ++rank) {
    RankMemory its;
    std::memcpy(&its, all[static_cast<size_t>(rank)].data(), sizeof its);
    RankMemory& row = most[static_cast<size_t>(coordinate_of(shape, rank).pipeline)];
    raise(row, its);
    for (size_t p = 0; p < kMemoryPhases; ++p) raise(row.phases[p], its.phases[p]);
    row.arena_bytes = std::max(row.arena_bytes, its.arena_bytes);
    row.reduced_bytes = std::max(row.reduced_bytes, its.reduced_bytes);
    row.outer_bytes = std::max(row.outer_bytes, its.outer_bytes);
    row.server_bytes = std::max(row.server_bytes, its.server_bytes);
  }
  return most;
}

RuntimeBytes runtime_bytes(const Config& config, int rank) {
  constexpr int64_t kMebibyte = int64_t{1} << 20;
  const int groups = device_groups(mesh_shape(config.parallel), rank, static_cast<int>(*config.model.kv_heads));
  return {.context = 512 * kMebibyte,  // a process without a framework took 320 MB (PyTorch issue 28394)
          .kernels = 512 * kMebibyte,
          .workspace = 32 * kMebibyte,  // from Hopper on; less before (kernels/cuda/gpu.cpp)
          // Reports say 0.6 GB (NCCL issue 964) to 1.6 GB (NCCL issue 864) per communicator, depending on channels and links.
          .communicators = 1024 * kMebibyte * groups};
}

void reserve_memory(Context& ctx, Communicator& world, const Config& config, const RankMemory& forecast) {
  // Context and workspace are allocated already; communicators of ranks that share a GPU keep their buffers on the host.
  const RuntimeBytes runtime = runtime_bytes(config, world.rank());
  const int64_t libraries = runtime.kernels + (config.run.ranks_per_gpu == 1 ? runtime.communicators : 0);
  const int pipeline = coordinate_of(mesh_shape(config.parallel), world.rank()).pipeline;
  collectively(world, [&] {
    const int64_t room = std::max<int64_t>(0, ctx.gpu->free_bytes() / config.run.ranks_per_gpu - libraries);
    if (forecast.arena_bytes > room)
      throw ConfigError(
          concat("this run needs ", forecast.arena_bytes, " bytes on the GPU (", ctx.gpu->properties().name, "), but only ", room,
                 " are free for this rank:\n", memory_table({forecast}, {}, pipeline),
                 "\nto reduce it: a smaller training.micro_batch_size, training.recompute, a higher parallel.zero_stage, more parallel.tensor or "
                 "parallel.pipeline ranks"));
  });
  world.barrier();  // ranks that share a GPU have all read free_bytes() before one reserves its part
  collectively(world, [&] { world.reserve_memory(ctx, forecast.arena_bytes); });
}

void register_memory(Communicator& world) {
  const std::string why = world.register_memory();
  if (!why.empty() && world.rank() == 0)
    std::cerr << concat("warning: parallel.register_buffers=true: NCCL does not use registered buffers: ", why, "\n");
}

}  // namespace trireme
