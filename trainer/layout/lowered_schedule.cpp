#include "trainer/layout/lowered_schedule.h"

#include <algorithm>
#include <bit>
#include <filesystem>
#include <set>
#include <tuple>

#include "kernels/core/counted.h"
#include "parallel/pipeline/simulate.h"
#include "parallel/pipeline/validate.h"
#include "parallel/pipeline/world.h"
#include "trainer/files/mapped_file.h"
#include "trainer/layout/rerouting.h"
#include "trainer/model/declare.h"

namespace trireme {

MeshShape mesh_shape(const ParallelConfig& parallel) {
  const ZeroPolicy policy = zero_policy(parallel);
  return {.pipeline = static_cast<int>(parallel.pipeline),
          .replicate = policy.replicate,
          .shard = policy.shard,
          .tensor = static_cast<int>(parallel.tensor),
          .islands = static_cast<int>(parallel.islands),
          .secondary = static_cast<int>(std::max<int64_t>(parallel.secondary_shards, 1))};
}

int64_t data_ranks(const ParallelConfig& parallel) { return parallel.islands * parallel.data.value(); }

ZeroPolicy zero_policy(const ParallelConfig& parallel) {
  return zero_policy(static_cast<int>(parallel.zero_stage), static_cast<int>(parallel.data.value()), static_cast<int>(parallel.replicate),
                     parallel.gradient_accumulation.value(), parallel.reshard == Reshard::kAfterUse);
}

Precision precision_of(const TrainingConfig& training) {
  const DType reduce = training.reduce_dtype == ReduceDtype::kBf16 ? DType::kBF16 : DType::kF32;
  switch (training.precision.value()) {
    case Arithmetic::kFp64: return {DType::kF64, DType::kF64, DType::kF64, DType::kF64};
    case Arithmetic::kFp32: return {DType::kF32, DType::kF32, DType::kF32, reduce};
    case Arithmetic::kBf16: return {DType::kBF16, DType::kF32, DType::kF32, reduce};
    case Arithmetic::kFp16: return {DType::kF16, DType::kF32, DType::kF32, reduce};
  }
  throw InternalError("a precision without dtypes");
}

OptimizerOptions optimizer_options(const TrainingConfig& training) {
  const OptimizerConfig& optimizer = training.optimizer;
  const Optimizer kind = optimizer.name.value();
  AdamW hyper{optimizer.beta1, optimizer.beta2.value_or(traits_of(kind).default_beta2), optimizer.epsilon, optimizer.weight_decay};
  if (training.compression.method == CompressionMethod::kOneBitAdam)
    hyper.second_moment_steps = static_cast<double>(training.compression.warmup_steps);
  return {.kind = kind, .hyper = hyper, .momentum = optimizer.momentum, .scale = optimizer.update_scale.value(), .average_decay = training.ema.decay};
}

bool needs_full_gradients(const CompressionConfig& compression) {
  return compression.method != CompressionMethod::kNone && compression.scope == CompressionScope::kData;
}

Encoding encoding_of(CompressionMethod method) {
  switch (method) {
    case CompressionMethod::kNone: return Encoding::kNone;
    case CompressionMethod::kInt8: return Encoding::kInt8;
    case CompressionMethod::kInt4: return Encoding::kInt4;
    case CompressionMethod::kSign:
    case CompressionMethod::kOneBitAdam: return Encoding::kSign;
    case CompressionMethod::kTopK: return Encoding::kTopK;
    case CompressionMethod::kRandomK: return Encoding::kRandomK;
    case CompressionMethod::kPowerSgd: return Encoding::kLowRank;
  }
  throw InternalError("unknown method of compression");
}

CompressionOptions compression_of(const Config& config) {
  const CompressionConfig& c = config.training.compression;
  return {.encoding = {.encoding = encoding_of(c.method.value()), .block = c.block, .ratio = c.ratio},
          .error_feedback = c.error_feedback,
          .replicas_only = c.scope == CompressionScope::kReplicate,
          .warmup_steps = c.warmup_steps,
          .seed = static_cast<uint64_t>(config.run.seed),
          .rank = c.rank};
}

EncodingOptions parameter_encoding_of(const Config& config) {
  const CompressionConfig& c = config.training.compression;
  return {.encoding = c.parameters == ParameterEncoding::kInt8 ? Encoding::kInt8 : Encoding::kNone, .block = c.block};
}

DType frozen_dtype(const Config& config) {
  const Precision precision = precision_of(config.training);
  return parameter_encoding_of(config).encoding == Encoding::kNone ? precision.compute : precision.master;
}

AggregationOptions aggregation_of(const Config& config) {
  const AggregationConfig& a = config.security.aggregation;
  return {.rule = a.rule.value(), .byzantine = a.byzantine, .momentum = a.momentum.value_or(0), .radius = a.radius};
}

std::vector<std::string> state_names(const TrainingConfig& training) {
  const Optimizer optimizer = training.optimizer.name.value();
  std::vector<std::string> names;
  for (const bool is_hidden_matrix : {true, false})
    for (const char* name : state_names_of(optimizer, is_hidden_matrix))
      if (std::ranges::find(names, name) == names.end()) names.push_back(name);
  if (training.ema.decay) names.push_back(kAverageName);
  return names;
}

int64_t state_count(const TrainingConfig& training, bool is_hidden_matrix) {
  return std::ssize(state_names_of(training.optimizer.name.value(), is_hidden_matrix)) + (training.ema.decay ? 1 : 0);
}

bool keeps_island_weights(const TrainingConfig& training) {
  const LocalConfig& local = training.local;
  return averages_elastically(training) || (local.steps && (local.fragments > 1 || local.blend < 1));
}

int64_t saved_states(const Config& config, bool is_hidden_matrix) {
  const LocalConfig& local = config.training.local;
  const auto of_island = state_count(config.training, is_hidden_matrix) + (keeps_island_weights(config.training) ? 1 : 0);
  const int64_t islands = has_parameter_servers(config.training) ? 1 : config.parallel.islands;  // parameter servers have one state for all
  return 1 + islands * of_island + (local.steps ? 1 : 0);
}

int microbatches_of(const Config& config) {
  const int64_t parts = config.parallel.data.value() * gradients_per_step(config);
  return static_cast<int>((config.training.global_batch_size / config.training.micro_batch_size + parts - 1) / parts);
}

/// Default: the largest power of two of rows whose logits fit in 64 MiB. A power of two divides most batches; products with an odd number of rows
/// were up to 7 % slower. On a CPU, chunks beyond 256 rows gained less than 2 %. On a GPU at least 4,096 rows: each chunk reads and writes the whole
/// gradient of the weight in fp32, which takes longer than the chunk's product if it has few rows.
int64_t logits_chunk(const Config& config) {
  constexpr int64_t kBytes = int64_t{64} << 20, kFewestOnGpu = 4096;
  const int64_t columns = stored_tokens((*config.model.vocab_size + config.parallel.tensor - 1) / config.parallel.tensor);
  const auto rows = static_cast<uint64_t>(kBytes / (columns * size_of(precision_of(config.training).compute)));
  const auto fitting = static_cast<int64_t>(std::bit_floor(std::max<uint64_t>(1, rows)));
  return config.training.logits_chunk.value_or(config.run.device == DeviceType::kCuda ? std::max(fitting, kFewestOnGpu) : fitting);
}

ProfileShape profile_shape(const Config& config) {
  return {.tensor = static_cast<int>(config.parallel.tensor),
          .sequence_parallel = config.parallel.sequence_parallel,
          .sequences = config.training.micro_batch_size,
          .length = config.training.sequence_length,
          .logits_chunk = logits_chunk(config),
          .compute = precision_of(config.training).compute,
          .recompute_elementwise = config.training.recompute_elementwise,
          .clips_samples = is_private(config.security)};
}

namespace {

/// The first reason why `lists` is not a valid schedule of these ranks, stages and micro-batches; empty if it is valid.
std::string find_error(const ActionLists& lists, int ranks, int stages, int microbatches) {
  if (static_cast<int>(lists.size()) != ranks) return concat(lists.size(), " lines with actions, but parallel.pipeline is ", ranks);
  std::set<std::tuple<int, int, ActionType>> there;
  for (const ActionList& list : lists) {
    for (const Action& action : list) {
      const ActionType type = action.type;
      const int stage = action.stage, microbatch = action.microbatch;
      const Action named{type, stage, microbatch};
      if (stage >= stages)
        return concat(to_string(named), ": parallel.pipeline x parallel.virtual_stages is ", counted(stages, "stage"), ", counted from 0");
      if (microbatch >= microbatches)
        return concat(to_string(named), ": a step has ", counted(microbatches, "micro-batch", "micro-batches"), ", counted from 0");
      there.emplace(stage, microbatch, type);
      if (type == ActionType::kBackward)
        there.insert({{stage, microbatch, ActionType::kBackwardInput}, {stage, microbatch, ActionType::kBackwardWeight}});
    }
  }
  for (int stage = 0; stage < stages; ++stage)
    for (int m = 0; m < microbatches; ++m)
      for (const ActionType type : {ActionType::kForward, ActionType::kBackwardInput, ActionType::kBackwardWeight})
        if (!there.contains({stage, m, type}))
          return concat(to_string(Action{type, stage, m}), " is missing", type == ActionType::kForward ? "" : concat(", or B for both I and W"));
  try {
    simulate(lists, [](const Action&) { return 1.0; });
  } catch (const InternalError& error) {  // the simulator throws if no rank can proceed
    return concat("deadlock: ", error.what());
  }
  const std::vector<StageUnits> units(static_cast<size_t>(stages), StageUnits{{{0}}, 1});
  const std::vector<std::string> problems = validate(lower(lists, units, {}), {ranks, 1, 1, 1}, units, microbatches, true);
  return problems.empty() ? "" : problems.front();
}

ActionLists schedule_from_file(const Config& config) {
  const std::string& path = config.parallel.schedule_file;
  const auto refuse = [&](const auto&... parts) { throw ConfigError(concat("parallel.schedule_file=", path, ": ", parts...)); };
  if (std::error_code error; !std::filesystem::exists(path, error)) throw MissingFileError(concat("parallel.schedule_file=", path, ": no such file"));
  const MappedFile file(path);
  file.load(0, file.bytes());
  ActionLists lists;
  try {
    lists = parse_schedule(std::string(reinterpret_cast<const char*>(file.data()), static_cast<size_t>(file.bytes())));
  } catch (const ConfigError& error) {
    refuse(error.what());
  }
  const int ranks = static_cast<int>(config.parallel.pipeline), stages = static_cast<int>(config.parallel.layers_per_stage.value().size());
  if (const std::string problem = find_error(lists, ranks, stages, microbatches_of(config)); !problem.empty())
    refuse("not a valid schedule of ", counted(ranks, "rank"), ", ", counted(stages, "stage"), " and ",
           counted(microbatches_of(config), "micro-batch", "micro-batches"), ": ", problem);
  const std::vector<int> stage_rank = stage_ranks(lists);
  const int first = stage_rank.front(), last = stage_rank.back();
  if (config.model.tied_embeddings && first != last && !(first == 0 && last == ranks - 1))
    refuse("with tied embeddings, the first and the last stage must be on the first and the last rank, or on the same rank");
  return lists;
}

/// The mesh with at most two ranks on each axis but the pipeline. All ranks of a pipeline rank run the same list, so two find the same deadlocks as
/// thousands.
MeshShape reduced_mesh(const MeshShape& mesh) {
  MeshShape least = mesh;
  for (const MeshAxisRow& row : kMeshAxes)
    if (row.degree != &MeshShape::pipeline) least.*row.degree = std::min(mesh.*row.degree, 2);
  return least;
}

ActionLists lower_and_validate(const ActionLists& lists, const LoweredSchedule& schedule, const LoweringPolicy& policy, const Config& config,
                               int microbatches, bool training) {
  ActionLists lowered = lower(lists, schedule.units, policy);
  const std::vector<std::string> problems =
      validate(lowered, reduced_mesh(mesh_shape(config.parallel)), schedule.units, microbatches, training, policy.end);
  TRIREME_CHECK(problems.empty(), problems.front());
  return lowered;
}

/// Relieved ranks and helpers differ between data ranks, so all of them are validated, with at most two tensor ranks each.
std::vector<ActionLists> reroute_and_validate(const ActionLists& lists, const LoweredSchedule& schedule, const Config& config, bool training) {
  const std::vector<ActionLists> rerouted = reroute(lists, *schedule.rerouting);
  MeshShape mesh = mesh_shape(config.parallel);
  mesh.tensor = std::min(mesh.tensor, 2);
  const std::vector<std::string> problems =
      validate(lists_of_ranks(rerouted, mesh), mesh, schedule.units, *schedule.rerouting, training, step_end_of(config));
  TRIREME_CHECK(problems.empty(), problems.front());
  return rerouted;
}

}  // namespace

const ActionList& LoweredSchedule::training_of(int data, int pipeline) const {
  return (rerouting ? rerouted_training.at(static_cast<size_t>(data)) : training).at(static_cast<size_t>(pipeline));
}

const ActionList& LoweredSchedule::evaluation_of(int data, int pipeline) const {
  return (rerouting ? rerouted_evaluation.at(static_cast<size_t>(data)) : evaluation).at(static_cast<size_t>(pipeline));
}

std::vector<const ActionList*> LoweredSchedule::training_of_ranks(const MeshShape& mesh) const {
  return rerouting ? lists_of_ranks(rerouted_training, mesh) : lists_of_ranks(training, mesh);
}

ActionLists training_schedule(const Config& config, int microbatches) {
  if (config.parallel.schedule == "file") {
    TRIREME_CHECK(microbatches == microbatches_of(config), "a schedule from a file is for ", microbatches_of(config), " micro-batches");
    return schedule_from_file(config);
  }
  for (const ScheduleKind kind : kScheduleKinds)
    if (config.parallel.schedule == name_of(kind)) {
      ActionLists lists =
          make_schedule(kind, static_cast<int>(config.parallel.pipeline), static_cast<int>(config.parallel.virtual_stages.value()), microbatches);
      if (is_private(config.security)) return with_sample_clipping(lists);
      return lists;
    }
  throw InternalError("unknown schedule: " + config.parallel.schedule);
}

ActionLists training_schedule(const Config& config) { return training_schedule(config, microbatches_of(config)); }

StepSchedule step_schedule(const Config& config) {
  const int all = microbatches_of(config);
  SchedulePeriod period;
  for (const ScheduleKind kind : kScheduleKinds)
    if (config.parallel.schedule == name_of(kind))
      period = period_of(kind, static_cast<int>(config.parallel.pipeline), static_cast<int>(config.parallel.virtual_stages.value()), all);
  return StepSchedule([config](int microbatches) { return training_schedule(config, microbatches); }, all, period);
}

int64_t blocks_per_unit(const Config& config) {
  if (!config.parallel.bucket_size) return 1;
  const int64_t bytes = largest_block(config.model) / config.parallel.tensor * size_of(precision_of(config.training).compute);
  return std::max<int64_t>(1, *config.parallel.bucket_size / std::max<int64_t>(1, bytes));
}

std::vector<StageUnits> stage_units(const Config& config, const std::vector<int>& stage_rank) {
  std::vector<StageUnits> units;
  const int stages = static_cast<int>(stage_rank.size());
  const bool neighbours = stages > 1 && stage_rank.front() == stage_rank.back();
  const int64_t blocks = blocks_per_unit(config);
  for (const StageRange& range : stage_ranges(*config.parallel.layers_per_stage)) {
    units.push_back(stage_units(parts_of(config.model, range, blocks), range, config.model, neighbours, is_private(config.security)));
    units.back().has_matrix_updates = range.blocks > 0 && traits_of(config.training.optimizer.name.value()).updates_matrices;
  }
  return units;
}

StepEnd step_end_of(const Config& config) {
  const TrainingConfig& training = config.training;
  StepEnd end{{}, !has_parameter_servers(training) && !shares_weights(training)};
  if (is_robust(config.security)) end.actions.push_back(ActionType::kAggregate);
  if (is_private(config.security) && !adds_noise_on_each_rank(config)) end.actions.push_back(ActionType::kNoise);
  end.actions.push_back(ActionType::kNorm);
  if (training.local.steps) end.actions.push_back(ActionType::kOuter);
  if (is_asynchronous(training)) end.actions.push_back(ActionType::kExchange);
  return end;
}

LoweredSchedule lowered_schedule(const Config& config) { return lowered_schedule(config, microbatches_of(config)); }

LoweredSchedule lowered_schedule(const Config& config, int microbatches) {
  const ZeroPolicy policy = zero_policy(config.parallel);
  const LoweringPolicy lowering{policy.unshard_each_use, !policy.gradients_resident, static_cast<int>(config.parallel.prefetch),
                                config.parallel.overlap, step_end_of(config)};
  const ActionLists training = training_schedule(config, microbatches);
  LoweredSchedule schedule;
  schedule.stage_rank = stage_ranks(training);
  schedule.units = stage_units(config, schedule.stage_rank);
  const auto forward = [&](int count) {
    return lower_and_validate(forward_only(schedule.stage_rank, count), schedule, lowering, config, count, false);
  };
  schedule.training = lower_and_validate(training, schedule, lowering, config, microbatches, true);
  schedule.evaluation = forward(microbatches);
  if (config.observe.samples.every > 0) schedule.text = forward(1);
  schedule.rerouting = rerouting_of(config, microbatches);
  if (!schedule.rerouting) return schedule;
  schedule.rerouted_training = reroute_and_validate(schedule.training, schedule, config, true);
  schedule.rerouted_evaluation = reroute_and_validate(schedule.evaluation, schedule, config, false);
  return schedule;
}

}  // namespace trireme
