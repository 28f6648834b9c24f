#pragma once
#include <array>
#include <vector>

#include "kernels/core/context.h"
#include "parallel/comm/communicator.h"
#include "trainer/config/config.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// Peak bytes as requested, without the arena's rounding.
struct MemoryPeaks {
  std::array<int64_t, kMemoryCategories> peak{};  ///< per category
  int64_t peak_total = 0;                         ///< peak of the sum over categories
};

/// Device memory of a rank, in bytes.
struct RankMemory : MemoryPeaks {
  std::array<MemoryPeaks, kMemoryPhases> phases{};  ///< zeros for phases that have not run
  int64_t arena_bytes = 0;                          ///< with the arena's rounding: reserving this much suffices for the whole run
  double reduced_bytes = 0;                         ///< bytes the rank sends in a step to reduce gradients over shards and replicas; 0 if measured
  double outer_bytes = 0;                           ///< bytes the rank sends in an outer step of training.local; 0 if measured
  double server_bytes = 0;                          ///< bytes the rank sends and receives for a gradient of training.asynchronous; 0 if measured
};

/// Counts memory by running the rank's first steps, a save and an evaluation on the meta device, with the real program; excludes the workspace that
/// CPU kernels allocate by thread count. `config` is resolved. Costs about 10 us per part of the model, micro-batch and pass.
RankMemory forecast_memory(const Config& config, int rank, int world_size);
/// With an explicit recompute policy, one entry per block of the model, instead of the configuration's.
RankMemory forecast_memory(const Config& config, int rank, int world_size, const std::vector<Recompute>& recompute);
/// Also with a precomputed lowered_schedule(config), which takes half of the time in a long pipeline: for many forecasts of one configuration.
RankMemory forecast_memory(const Config& config, int rank, int world_size, const std::vector<Recompute>& recompute, const LoweredSchedule& schedule);

/// The peaks that an arena has recorded so far.
RankMemory measured_memory(const Arena& arena);

/// For each pipeline rank, the maximum over its ranks; the same result on all ranks. Collective.
std::vector<RankMemory> memory_by_pipeline_rank(Communicator& world, const MeshShape& shape, const RankMemory& mine);

/// GPU memory used outside the arena, in bytes: an allowance, because it cannot be queried beforehand.
struct RuntimeBytes {
  int64_t context = 0;        ///< of the driver, per process
  int64_t kernels = 0;        ///< kernel code, loaded at first launch
  int64_t workspace = 0;      ///< of matrix products
  int64_t communicators = 0;  ///< NCCL's buffers, allocated at a communicator's first collective; groups of the same ranks share one
  int64_t total() const { return context + kernels + workspace + communicators; }
};
/// For a rank that does not share its GPU.
RuntimeBytes runtime_bytes(const Config& config, int rank);

/// Reserves the forecast's GPU memory at once, so that a run that does not fit fails before the first step. Collective.
/// Errors: ConfigError on all ranks, with the table of the forecast.
void reserve_memory(Context& ctx, Communicator& world, const Config& config, const RankMemory& forecast);

/// With parallel.register_buffers, registers the reserved memory with NCCL, after all groups of ranks have been made. If a rank cannot, no rank does,
/// and rank 0 prints a warning. Collective.
void register_memory(Communicator& world);

}  // namespace trireme
