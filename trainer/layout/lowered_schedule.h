#pragma once
// From a resolved configuration to the action lists of its ranks.
#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/sharding/zero_policy.h"
#include "trainer/config/config.h"
#include "trainer/model/part_profile.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

MeshShape mesh_shape(const ParallelConfig& parallel);
ZeroPolicy zero_policy(const ParallelConfig& parallel);
Precision precision_of(const TrainingConfig& training);
/// What is kept of each weight in the dtype of the masters: the optimizer's state, and the moving average last where there is one.
std::vector<std::string> state_names(const TrainingConfig& training);

/// Micro-batches of one data rank in a step.
int microbatches_of(const Config& config);

/// Rows of logits that a head makes at a time: training.logits_chunk, or what it is by itself.
int64_t logits_chunk(const Config& config);
/// What the parts of a training run are profiled with.
ProfileShape profile_shape(const Config& config);

/// The compute-only schedule of a training step: generated, or read from parallel.schedule_file.
/// Errors: those of MappedFile; ConfigError where the file is no schedule of this configuration's ranks, stages and micro-batches.
ActionLists training_schedule(const Config& config);

/// Blocks whose parameters are one unit, gathered and reduced together: as many as make up parallel.bucket_size bytes, at least one.
int64_t blocks_per_unit(const Config& config);

/// What lowering must know of each stage.
std::vector<StageUnits> stage_units(const Config& config, const std::vector<int>& stage_rank);

/// Lowered and proven lists of all pipeline ranks: a list that could deadlock, or that leaves something out, is never run.
struct LoweredSchedule {
  std::vector<int> stage_rank;  ///< pipeline rank of each stage
  std::vector<StageUnits> units;
  ActionLists training, evaluation;
};
LoweredSchedule lowered_schedule(const Config& config);

}  // namespace trireme
