// counted_memory and formula_memory of trainer/plan/forecast.h.
#include "trainer/loop/memory.h"
#include "parallel/mesh.h"
#include "trainer/layout/rerouting.h"
#include "trainer/loop/recompute.h"
#include "trainer/plan/memory/stack_memory.h"
#include "trainer/plan/memory/trireme_memory.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

void add_runtime(std::vector<RankBytes>& ranks, const Config& config, const ClusterConfig& cluster) {
  if (cluster.device.cores) return;  // no allowance on a CPU: code and buffers of its libraries are not counted
  const MeshShape shape = mesh_shape(config.parallel);
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].allowance = runtime_bytes(config, rank_of(shape, {.pipeline = static_cast<int>(r)}));
    ranks[r].runtime = static_cast<double>(ranks[r].allowance->total());
    ranks[r].peak += ranks[r].runtime;
  }
}

RankBytes counted(const RankMemory& memory) {
  const auto at = [&](MemoryCategory category) { return static_cast<double>(memory.peak[static_cast<size_t>(category)]); };
  RankBytes bytes;
  bytes.parameters = at(MemoryCategory::kParameters);
  bytes.gradients = at(MemoryCategory::kGradients);
  bytes.optimizer = at(MemoryCategory::kOptimizer);
  bytes.activations = at(MemoryCategory::kActivations);
  bytes.other = at(MemoryCategory::kWorkspace) + at(MemoryCategory::kCommunication) + at(MemoryCategory::kData);
  bytes.peak = static_cast<double>(memory.peak_total);
  bytes.counted = memory;
  return bytes;
}

/// Adds the token ids and targets, which a rank has of all its micro-batches during the whole run, of micro-batches that were not counted.
void add_microbatches(RankMemory& memory, const Config& config, int microbatches) {
  const int64_t buffers = config.data.document_mask ? 4 : 2;
  const int64_t bytes =
      microbatches * buffers * static_cast<int64_t>(sizeof(int32_t)) * config.training.micro_batch_size * config.training.sequence_length;
  const auto add = [&](MemoryPeaks& peaks) {
    peaks.peak[static_cast<size_t>(MemoryCategory::kData)] += bytes;
    peaks.peak_total += bytes;
  };
  add(memory);
  for (MemoryPeaks& phase : memory.phases)
    if (phase.peak_total > 0) add(phase);
  memory.arena_bytes += bytes;
}

}  // namespace

std::vector<RankBytes> counted_memory(const Config& config, const ClusterConfig& cluster) {
  const MeshShape shape = mesh_shape(config.parallel);
  const std::vector<Recompute> recompute = recompute_policy(config);
  const Config fewer = with_steady_microbatches(config);
  const LoweredSchedule schedule = lowered_schedule(fewer);
  std::vector<RankBytes> ranks;
  for (int r = 0; r < shape.pipeline; ++r) {
    RankMemory most;
    for (const int rank : ranks_to_forecast(config, r)) {
      RankMemory memory = forecast_memory(fewer, rank, shape.world(), recompute, schedule);
      add_microbatches(memory, config, microbatches_of(config) - microbatches_of(fewer));
      if (memory.peak_total > most.peak_total) most = memory;
    }
    ranks.push_back(counted(most));
  }
  add_runtime(ranks, config, cluster);
  return ranks;
}

std::vector<RankBytes> formula_memory(const Config& config, const ClusterConfig& cluster) {
  PartProfiles profiles(config.model);
  StepSchedule schedule = step_schedule(config);
  return formula_memory(config, cluster, profiles, schedule);
}

std::vector<RankBytes> formula_memory(const Config& config, const ClusterConfig& cluster, PartProfiles& profiles, StepSchedule& schedule) {
  if (!stack_of(cluster.software.stack).own) return stack_memory(config, cluster.software, profiles, steady_lists(config, schedule));
  std::vector<RankBytes> ranks = trireme_memory(config, profiles, steady_lists(config, schedule));
  add_runtime(ranks, config, cluster);
  return ranks;
}

}  // namespace trireme
