#pragma once
// Builds the action lists of all ranks from a resolved configuration.
#include <optional>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/reroute.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/step_times.h"
#include "parallel/sharding/zero_policy.h"
#include "trainer/config/config.h"
#include "trainer/model/part_profile.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

MeshShape mesh_shape(const ParallelConfig& parallel);
/// Number of ranks that split the global batch: parallel.data of each island. `data` is resolved.
int64_t data_ranks(const ParallelConfig& parallel);
ZeroPolicy zero_policy(const ParallelConfig& parallel);
Precision precision_of(const TrainingConfig& training);
/// The Reducer's options; encoding none means that sums are plain.
CompressionOptions compression_of(const Config& config);
/// How shards send their parameters (ParamStore).
EncodingOptions parameter_encoding_of(const Config& config);
/// That of the owned shards of frozen units (ParamStore).
DType frozen_dtype(const Config& config);
AggregationOptions aggregation_of(const Config& config);
/// Rule, hyper-parameters and moving average of a resolved configuration.
OptimizerOptions optimizer_options(const TrainingConfig& training);
/// True if training.compression encodes a step's gradient once, from a full one.
bool needs_full_gradients(const CompressionConfig& compression);
/// Names of the state that weights have in the dtype of the master weights: the optimizer's state, then the moving average if training.ema is set. Not
/// every parameter has all of it with an optimizer of matrices.
std::vector<std::string> state_names(const TrainingConfig& training);
/// Number of these tensors that a parameter has.
int64_t state_count(const TrainingConfig& training, bool is_hidden_matrix);

/// True if islands keep weights of their own beside the shared ones after a round: of training.local, or of elastic averaging, where the shared ones are
/// the centre.
bool keeps_island_weights(const TrainingConfig& training);

/// Number of tensors that a checkpoint has for a parameter, without what a Reducer keeps: the weight, its state on each island and, with
/// training.local, the momentum of the outer step and the weights that each island keeps.
int64_t saved_states(const Config& config, bool is_hidden_matrix);

/// Micro-batches per step and data rank in an even split, where resilience.elastic lets data ranks differ by one the larger number; with
/// training.asynchronous, per gradient and data rank.
int microbatches_of(const Config& config);

/// Rows of logits that the head computes at a time: training.logits_chunk, or its default for run.device, which is cpu unless it is cuda.
int64_t logits_chunk(const Config& config);
/// Shapes and dtypes with which the parts of a training run are profiled.
ProfileShape profile_shape(const Config& config);

/// The compute-only schedule of a training step of `microbatches` on each data rank: generated, or read from parallel.schedule_file, which is for an
/// even split. Errors: those of MappedFile; ConfigError if the file is not a valid schedule for this configuration's ranks, stages and micro-batches.
ActionLists training_schedule(const Config& config, int microbatches);
ActionLists training_schedule(const Config& config);
/// The same for step_times(): generated for as many micro-batches as it asks for.
StepSchedule step_schedule(const Config& config);

/// Number of blocks per unit, whose parameters are gathered and reduced together: as many as fit in parallel.bucket_size bytes, at least one.
int64_t blocks_per_unit(const Config& config);

/// The units of each stage, an input of lower().
std::vector<StageUnits> stage_units(const Config& config, const std::vector<int>& stage_rank);

/// Lowered and validated lists of all pipeline ranks, of an even split unless `microbatches` is given. Validation rules out deadlocks and missing
/// actions, also in the lists of all ranks of a world with relieved ranks.
struct LoweredSchedule {
  std::vector<int> stage_rank;  ///< pipeline rank of each stage
  std::vector<StageUnits> units;
  ActionLists training, evaluation;
  ActionLists text;                                                 ///< forward of one micro-batch; only with observe.samples
  std::optional<Rerouting> rerouting;                               ///< with resilience.reroute
  std::vector<ActionLists> rerouted_training, rerouted_evaluation;  ///< by data rank, then by pipeline rank; only with resilience.reroute

  const ActionList& training_of(int data, int pipeline) const;
  const ActionList& evaluation_of(int data, int pipeline) const;
  /// The training lists of all world ranks.
  std::vector<const ActionList*> training_of_ranks(const MeshShape& mesh) const;
};
/// What a step does after the sums of its gradients: aggregation, noise, outer steps and exchanges are actions of the list where the run has them.
StepEnd step_end_of(const Config& config);

LoweredSchedule lowered_schedule(const Config& config, int microbatches);
LoweredSchedule lowered_schedule(const Config& config);

}  // namespace trireme
