#pragma once
#include <array>
#include <vector>

#include "kernels/core/context.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// In bytes, as asked for.
struct MemoryPeaks {
  std::array<int64_t, kMemoryCategories> peak{};  ///< of each category by itself
  int64_t peak_total = 0;                         ///< of the sum over categories
};

/// What a rank takes on its device, in bytes.
struct RankMemory : MemoryPeaks {
  std::array<MemoryPeaks, kMemoryPhases> phases{};  ///< zeros where there was no such phase
  int64_t arena_bytes = 0;                          ///< with the arena's rounding: what it must hold so that the run asks the system for nothing more
  double reduced_bytes = 0;                         ///< of gradients that the rank sends in a step, over shards and replicas; 0 of measured memory
};

/// Counted by running the rank's first steps, a save and an evaluation on the meta device, so by the program that will ask; without what kernels of the CPU
/// take of workspace for themselves. `config` is resolved. Costs about 10 us for each part of the model, micro-batch and pass.
RankMemory forecast_memory(const Config& config, int rank, int world_size);
/// With this in place of what `config` says of recomputation; an entry for each block of the model.
RankMemory forecast_memory(const Config& config, int rank, int world_size, const std::vector<Recompute>& recompute);
/// And with these as lowered_schedule(config), which take half of the time in a long pipeline: for many forecasts of one configuration.
RankMemory forecast_memory(const Config& config, int rank, int world_size, const std::vector<Recompute>& recompute, const LoweredSchedule& schedule);

/// What an arena has seen so far.
RankMemory measured_memory(const Arena& arena);

/// Of each pipeline rank, the most that any of its ranks says; the same everywhere. Collective.
std::vector<RankMemory> memory_by_pipeline_rank(Communicator& world, const MeshShape& shape, const RankMemory& mine);

/// What a GPU gives away beside the arena, in bytes: an allowance, for none of it can be asked for beforehand.
struct RuntimeBytes {
  int64_t context = 0;        ///< the driver's, of one process
  int64_t kernels = 0;        ///< code, loaded at its first launch
  int64_t workspace = 0;      ///< of matrix products
  int64_t communicators = 0;  ///< NCCL's buffers, which a group takes at its first collective
  int64_t total() const { return context + kernels + workspace + communicators; }
};
/// Of a rank that has its GPU to itself.
RuntimeBytes runtime_bytes(const Config& config, int rank);

/// Takes the GPU's part of the forecast at once: what does not fit is told before the first step. Collective.
/// Errors: ConfigError on all ranks, with the table of what was wanted.
void reserve_memory(Context& ctx, Communicator& world, const Config& config, const RankMemory& forecast);

}  // namespace trireme
