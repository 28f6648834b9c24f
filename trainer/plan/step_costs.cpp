#include "trainer/plan/step_costs.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/dtype.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/micro_batch_split.h"
#include "trainer/loop/recompute.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/gradient_seconds.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/layouts.h"
#include "trainer/plan/operation_costs.h"
#include "trainer/plan/update_costs.h"

namespace trireme {
namespace {

/// Rate of a large product in fp8 relative to bf16, measured on an H100: 1402.6 and 794.5 TFLOP/s (stas00/ml-engineering).
constexpr double kFp8Rate = 1.77;

/// Exposed seconds of collectives that overlap `compute` seconds: `held`, which stalls the compute, and the part of `beside` that outlasts it.
double exposed(double held, double beside, double compute) { return held + std::max(0.0, beside - compute); }

class Model {
 public:
  Model(const Config& config, const ClusterConfig& cluster, PartProfiles& profiles)
      : config_(config),
        cluster_(cluster),
        costs_(config, cluster),
        stack_(costs_.stack()),
        shape_(profile_shape(config)),
        profiles_(profiles),
        shared_(shared_uses(config, stack_)) {
    if (stack_.own) return;
    shape_.logits_chunk = shape_.sequences * shape_.length;
    shape_.clips_samples = false;
  }

  ModelSeconds seconds() {
    ModelSeconds model;
    model.parts = profiles_.parts();
    for (const Part& part : model.parts) {
      const auto [costs, added] = model.costs.try_emplace(part.traits());
      if (!added) continue;
      costs->second.units = profiles_.of(part, shape_).units;
      for (size_t u = 0; u < part.units.size(); ++u) {
        const UnitSum unit{static_cast<double>(costs->second.units[u]), 1};
        if (part.units[u].trainable) costs->second.trained.add(unit);
        if (part.units[u].kept_whole) costs->second.whole.add(unit);
      }
      if (traits_of(config_.training.optimizer.name.value()).updates_matrices) add_matrices(costs->second, profiles_.of(part, shape_));
      for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
        PartSeconds& seconds = costs->second.seconds[static_cast<size_t>(recompute)];
        seconds = compute(part, recompute);
        move(part, seconds, costs->second);
      }
    }
    const auto blocks = static_cast<double>(config_.model.layers);
    for (const auto& [traits, costs] : model.costs) {
      if (std::get<PartKind>(traits) != PartKind::kBlock) continue;
      const auto alike = static_cast<double>(std::ranges::count(model.parts, traits, &Part::traits));
      for (size_t kind = 0; kind < model.mean_block.size(); ++kind) model.mean_block[kind].add(costs.seconds[kind], alike / blocks);
    }
    return model;
  }

 private:
  void add_matrices(PartCosts& costs, const PartProfile& profile) const {
    for (const MatrixShape& shape : profile.matrices)
      costs.matrices.push_back({shape, costs_.of(matrix_operations(shape, exchanged_dtype(precision_of(config_.training)))).compute});
  }

  PartSeconds compute(const Part& part, Recompute recompute) {
    const PartProfile& profile = profiles_.of(part, shape_);
    if (part.kind == PartKind::kHead && !shape_.clips_samples) return head(profile);
    const bool block = part.kind == PartKind::kBlock;
    const OperationSeconds forward = costs_.of(profile.forward.operations, block), input = costs_.of(profile.input_gradient.operations, block),
                           weight = costs_.of(profile.weight_gradient.operations, block);
    const double host = block ? stack_.layer_seconds : 0;
    // Only Trireme gathers a block's inputs again for its weight gradients under sequence parallelism.
    const double gathered = block && !stack_.own ? 0 : weight.tensor;
    PartSeconds seconds{.forward = forward.compute + forward.tensor + host,
                        .input_gradient = input.compute + input.tensor + gathered + host,
                        .weight_gradient = weight.compute + host,
                        .tensor_forward = forward.tensor,
                        .tensor_backward = input.tensor + gathered};
    if (block && recompute != Recompute::kNone) add_recomputation(seconds, part, recompute, forward);
    return seconds;
  }

  void add_recomputation(PartSeconds& seconds, const Part& part, Recompute recompute, const OperationSeconds& forward) {
    OperationSeconds again;
    if (stack_.own) {
      again = costs_.of(profiles_.of(part, shape_, recompute).input_gradient.operations);
      const OperationSeconds once = costs_.of(profiles_.of(part, shape_).input_gradient.operations);
      again.compute -= once.compute;
      again.tensor -= once.tensor;
    } else if (recompute == Recompute::kSelective) {
      again.compute = forward.attention + stack_.selective_blocks * forward.compute;
    } else {
      again.compute = forward.compute + stack_.layer_seconds;
      again.tensor = forward.tensor;
    }
    seconds.recompute = again.compute;
    seconds.tensor_backward += again.tensor;
    seconds.input_gradient += again.compute + again.tensor;
  }

  PartSeconds head(const PartProfile& profile) const {
    const OperationSeconds both = costs_.of(profile.backward.operations);
    const double forward = stack_.own ? 0 : costs_.of(profile.evaluation.operations).compute;
    return {.forward = forward, .input_gradient = both.compute - forward + both.tensor, .tensor_backward = both.tensor};
  }

  /// Adds the communication of ZeRO-2 and 3 per micro-batch.
  void move(const Part& of, PartSeconds& part, const PartCosts& costs) const {
    const ZeroPolicy policy = zero_policy(config_.parallel);
    const GroupPlacement shard = place_of(policy.shard, config_.parallel.tensor, cluster_, CollectiveChoice(config_));
    const double factor = stack_.data_factor;
    const int messages = of.kind == PartKind::kBlock ? stack_.gathers_per_block : 1;
    const double elements = costs.elements() - costs.whole.elements;
    const double gathered = policy.unshard_each_use ? factor * messages * gather_seconds(config_, shard, elements / messages, cluster_) : 0;
    const bool head = of.kind == PartKind::kHead, embedding = of.kind == PartKind::kEmbedding;
    const double reduced = policy.gradients_resident || (head && shared_.table)
                               ? 0
                               : factor * reduce_scatter_seconds(shard, stack_.reduce_bytes * costs.trained.elements, cluster_);
    // PyTorch's hooks free a block's parameters after its recomputation, and gather them a third time for its backward.
    const double again = stack_.gathers_per_block > 1 && config_.training.recompute == RecomputeMode::kFull ? 2 : 1;
    const double forward = head && shared_.head ? 0 : gathered, backward = embedding && shared_.embedding ? 0 : again * gathered;
    const double gather_held = 1 - stack_.gather_overlap, reduce_held = 1 - stack_.scatter_overlap;
    part.gather_forward = exposed(gather_held * forward, (1 - gather_held) * forward, part.forward);
    part.gather_backward = exposed(gather_held * backward + reduce_held * reduced, (1 - gather_held) * backward + (1 - reduce_held) * reduced,
                                   part.input_gradient + part.weight_gradient);
    part.forward += part.gather_forward;
    part.input_gradient += part.gather_backward;
  }

  const Config& config_;
  const ClusterConfig& cluster_;
  OperationCosts costs_;
  Stack stack_;
  ProfileShape shape_;
  PartProfiles& profiles_;
  SharedUses shared_;
};

/// What the stages of one pipeline rank have and take.
struct RankLoad {
  UnitSum all, trained, whole;       ///< as in PartCosts
  double forward = 0, backward = 0;  ///< without time that the same links are busy
  double compute = 0;                ///< of a micro-batch
  RankMatrices matrices;

  void add(const PartCosts& part, double together) {
    all.add({part.elements(), static_cast<double>(part.units.size())}, 1 / together);
    trained.add(part.trained, 1 / together);
    whole.add(part.whole, 1 / together);
    for (const auto& [shape, seconds] : part.matrices) {
      matrices.shapes.push_back(shape);
      matrices.seconds.push_back(seconds);
      matrices.elements += static_cast<double>(shape[0] * shape[1]);
    }
  }
};

/// Communication once per step on a pipeline rank: reduction of its gradients and gathers of its parameters, without the part hidden behind the last
/// micro-batch's backward and the first one's forward.
double reduce_seconds(const Config& config, const ClusterConfig& cluster, const Stack& stack, const RankLoad& rank) {
  const ZeroPolicy policy = zero_policy(config.parallel);
  const CollectiveChoice collectives(config);
  const GroupPlacement shard = place_of(policy.shard, config.parallel.tensor, cluster, collectives);
  const GroupPlacement replicate = place_of(policy.replicate, config.parallel.tensor * policy.shard, cluster, collectives);
  // A link without ranges has one bandwidth, and its latency is nothing beside a step. Where it has ranges, the size of a unit decides.
  const auto by_unit = [&](auto seconds, const GroupPlacement& group, const UnitSum& sum, double shards = 1) {
    if (sum.units == 0) return 0.0;
    const double elements = sum.elements / shards;
    return depends_on_size(group, cluster) ? sum.units * seconds(group, elements / sum.units, cluster) : seconds(group, elements, cluster);
  };
  const GradientSeconds sums(config, stack, cluster);
  double reduced =
      by_unit([&](const auto& group, double bytes, const auto&) { return sums.replicas(group, bytes); }, replicate, rank.trained, policy.shard);
  if (policy.gradients_resident)
    reduced +=
        by_unit([&](const auto& group, double bytes, const auto&) { return sums.scatter(group, bytes); }, sums.scatter_group(shard), rank.trained);
  const auto gather = [&](const auto& group, double of_unit, const auto&) { return gather_seconds(config, group, of_unit, cluster); };
  // Full parameters that live for the run are gathered again after an update.
  const double gathered = by_unit(gather, shard, policy.unshard_each_use ? rank.whole : policy.parameters_resident ? rank.trained : rank.all);
  // At least a tenth is exposed: the last bucket, and late starts. Trireme hides less than the compute beside it, as the simulation of all its ranks shows
  // (tests/plan/world_costs_test.cpp).
  const double hidden = stack.own ? 0.6 : 1;
  const auto visible = [&](double seconds, double beside) {
    seconds *= stack.data_factor;
    return stack.reduce_overlap ? std::max(0.1 * seconds, seconds - hidden * beside) : seconds;
  };
  return visible(reduced, rank.backward) + visible(gathered, rank.forward);
}

}  // namespace

Stack effective_stack(const ClusterConfig& cluster, const Config& config) {
  Stack stack = stack_of(cluster.software.stack);
  const SoftwareConfig& software = cluster.software;
  if (software.fp8 != "none") stack.fp8_rate = software.fp8 == "tensorwise" ? kFp8Rate : 1;  // torchtitan's rowwise runs are no faster than bf16
  if (stack.own) stack.reduce_bytes = static_cast<double>(size_of(precision_of(config.training).reduce));
  if (cluster.device.cores) stack.elementwise = 1;  // bench machine measured Trireme's own fused kernels
  stack.tf32 = config.kernels.tf32 && !cluster.device.cores;
  stack.cudnn = config.kernels.attention == AttentionEngine::kCudnn;
  if (software.context == 1) stack.ring_attention_rate = 0;
  if (stack.ring_attention_rate > 0) stack.attention_rate = stack.ring_attention_rate;
  const bool overlap = config.parallel.overlap && !cluster.device.cores;
  stack.scatter_overlap = overlap ? stack.gather_overlap : 0;
  if (!overlap || config.parallel.prefetch == 0) stack.gather_overlap = 0;
  if (!overlap) stack.tensor_overlap = 0;
  stack.reduce_overlap = stack.reduce_overlap && overlap;
  return stack;
}

PartSeconds& PartSeconds::add(const PartSeconds& other, double times) {
  forward += times * other.forward;
  input_gradient += times * other.input_gradient;
  weight_gradient += times * other.weight_gradient;
  recompute += times * other.recompute;
  tensor_forward += times * other.tensor_forward;
  tensor_backward += times * other.tensor_backward;
  gather_forward += times * other.gather_forward;
  gather_backward += times * other.gather_backward;
  return *this;
}

void PartSeconds::slow_down(double times) {
  forward += (times - 1) * (forward - tensor_forward - gather_forward);
  input_gradient += (times - 1) * (input_gradient - tensor_backward - gather_backward);
  weight_gradient *= times;
  recompute *= times;
}

SharedUses shared_uses(const ActionLists& lists, bool tied_embeddings) {
  const std::vector<int> stage_rank = stage_ranks(lists);
  const auto alternates = [&](int stage, bool backward_first) {
    int uses = 0, followed = 0;
    bool after = false;  // behind a use of the first kind
    for (const Action& action : lists[static_cast<size_t>(stage_rank[static_cast<size_t>(stage)])]) {
      if (action.type == ActionType::kBackwardWeight) continue;  // reads no parameters
      const bool own = action.stage == stage, first = own && (action.type != ActionType::kForward) == backward_first;
      if (after && own && !first) ++followed;
      if (first) ++uses;
      after = first;
    }
    return 2 * followed > uses;
  };
  return {.head = alternates(static_cast<int>(stage_rank.size()) - 1, false),
          .embedding = alternates(0, true),
          .table = tied_embeddings && stage_rank.front() == stage_rank.back()};
}

SharedUses shared_uses(const Config& config, const Stack& stack) {
  if (!stack.own) return {};
  if (config.parallel.schedule == "file") return shared_uses(training_schedule(config), config.model.tied_embeddings);
  const ScheduleKind kind = layout_of(config).schedule;
  const bool one_rank = config.parallel.pipeline == 1, alternates = one_rank || kind != ScheduleKind::kGPipe;
  return {.head = alternates,
          .embedding = one_rank || (alternates && kind != ScheduleKind::kZbV),
          .table = config.model.tied_embeddings && (one_rank || kind == ScheduleKind::kZbV)};
}

ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster, PartProfiles& profiles) {
  return Model(config, cluster, profiles).seconds();
}

ModelSeconds model_seconds(const Config& config, const ClusterConfig& cluster) {
  PartProfiles profiles(config.model);
  return model_seconds(config, cluster, profiles);
}

double straggler_factor(const Config& config, const ClusterConfig& cluster) {
  const double straggler = cluster.software.straggler;
  // Its gradients are left out, but the last one of a round is waited for.
  if (config.resilience.backup_replicas > 0) return 1 + (straggler - 1) / static_cast<double>(config.training.asynchronous.steps);
  if (config.resilience.rebalance == Rebalance::kNone || straggler == 1) return straggler;
  std::vector<double> seconds(static_cast<size_t>(data_ranks(config.parallel)), 1.0);
  seconds.front() = straggler;
  const MicroBatchSplit split = split_by_speed(config, seconds);
  const ZeroPolicy policy = zero_policy(config.parallel);
  if (policy.shard == 1 || (policy.gradients_resident && !policy.unshard_each_use)) return longest_seconds(split, seconds) / microbatches_of(config);
  // The others wait in each micro-batch of the straggler, and compute their further ones alone.
  const int slow = split.front(), most = std::ranges::max(split);
  return (slow * straggler + most - slow) / microbatches_of(config);
}

bool is_staggered(const Stack& stack, const std::string& schedule) { return stack.post_validation && schedule.starts_with("zb_"); }

namespace {

/// The seconds of each stage, and by pipeline rank what its stages have.
std::vector<RankLoad> add_stages(const Config& config, const Stack& stack, const ModelSeconds& model, const std::vector<int>& stage_rank,
                                 std::vector<PartSeconds>& stages) {
  std::vector<RankLoad> ranks(static_cast<size_t>(config.parallel.pipeline));
  const std::vector<Recompute> recompute = recompute_policy(config);
  const auto together = static_cast<double>(blocks_per_unit(config));
  // A tied table on a rank with both embedding and head counts once.
  const bool one_table = config.model.tied_embeddings && stage_rank.front() == stage_rank.back();
  for (const StageRange& range : stage_ranges(*config.parallel.layers_per_stage)) {
    RankLoad& rank = ranks[static_cast<size_t>(stage_rank[static_cast<size_t>(range.stage)])];
    PartSeconds stage;
    const auto add = [&](const Part& part, Recompute how) {
      stage.add(model.seconds_of(part, how));
      rank.add(model.of(part), part.kind == PartKind::kBlock ? together : 1);
    };
    if (range.first()) add(model.parts.front(), Recompute::kNone);
    for (int64_t b = range.first_block; b < range.first_block + range.blocks; ++b)
      add(model.parts[static_cast<size_t>(b) + 1], recompute[static_cast<size_t>(b)]);
    if (range.last()) add(model.parts.back(), Recompute::kNone);
    if (range.last() && one_table) {
      const auto table = static_cast<double>(model.embedding().units.front());
      rank.all.elements -= table;
      if (has_tied_gradients(config.model)) rank.trained.elements -= table;
    }
    // The uses of an embedding alone on its rank are all adjacent, so it is gathered once a step.
    if (range.blocks == 0 && *config.parallel.virtual_stages == 1 && stack.own) stage.forward -= std::exchange(stage.gather_forward, 0);
    rank.forward += stage.forward - stage.gather_forward;
    rank.backward += stage.input_gradient + stage.weight_gradient - stage.gather_backward;
    rank.compute += stage.total();
    stages.push_back(stage);
  }
  return ranks;
}

/// From each stage but the last to the next one.
std::vector<double> stage_transfers(const Config& config, const ClusterConfig& cluster, const Stack& stack, const std::vector<int>& stage_rank) {
  const auto element = static_cast<double>(size_of(precision_of(config.training).compute));
  const double boundary =
      element * static_cast<double>(config.training.micro_batch_size * config.training.sequence_length * config.model.hidden_size);
  const MeshShape mesh = mesh_shape(config.parallel);
  const double part = config.parallel.sequence_parallel || stack.split_transfers ? 1.0 / static_cast<double>(mesh.tensor) : 1;
  std::vector<double> seconds;
  for (size_t i = 0; i + 1 < stage_rank.size(); ++i) {
    const int from = stage_rank[i], to = stage_rank[i + 1];
    seconds.push_back(from == to ? 0 : transfer_seconds(from, to, stride_of(mesh, MeshAxis::kPipeline), part * boundary, cluster));
  }
  return seconds;
}

/// The owners of a tied table on the first and the last rank all-reduce their shards after everything else.
double tied_seconds(const Config& config, const ClusterConfig& cluster, const Stack& stack, const ModelSeconds& model,
                    const std::vector<int>& stage_rank) {
  const int64_t apart = int64_t{stride_of(mesh_shape(config.parallel), MeshAxis::kPipeline)} * (stage_rank.back() - stage_rank.front());
  if (!has_tied_gradients(config.model) || apart <= 0) return 0;
  const GroupPlacement ends = place_of(2, apart, cluster, CollectiveChoice(config));
  return GradientSeconds(config, stack, cluster).tied(ends, static_cast<double>(model.embedding().units.front()));
}

}  // namespace

StepCosts step_costs(const Config& config, const ClusterConfig& cluster, const ModelSeconds& model, const std::vector<int>& stage_rank) {
  const Stack stack = effective_stack(cluster, config);
  const MeshShape mesh = mesh_shape(config.parallel);
  const int shards = degree_of(mesh, MeshAxis::kShard);
  StepCosts costs;
  const std::vector<RankLoad> ranks = add_stages(config, stack, model, stage_rank, costs.stages);
  costs.transfers = stage_transfers(config, cluster, stack, stage_rank);
  const double tied = tied_seconds(config, cluster, stack, model, stage_rank);
  for (int number = 0; number < static_cast<int>(ranks.size()); ++number) {
    const RankLoad& rank = ranks[static_cast<size_t>(number)];
    const bool end = number == stage_rank.front() || number == stage_rank.back();
    const OuterSeconds outer = outer_seconds(config, cluster, rank.trained.elements / shards, microbatches_of(config) * rank.compute);
    costs.reduce.push_back(reduce_seconds(config, cluster, stack, rank) + (end ? tied : 0) + outer.all_reduce +
                           server_seconds(config, cluster, rank.trained.elements / shards));
    costs.hidden_outer.push_back(outer.hidden);
    const double of_matrices = rank.matrices.elements / mesh.tensor;
    const double bytes = update_bytes(config, false) * (rank.trained.elements - of_matrices) + update_bytes(config, true) * of_matrices;
    costs.optimizer.push_back(traffic_seconds(bytes / shards, 1, cluster) + outer.traffic + orthogonalize_seconds(config, cluster, rank.matrices));
  }
  // The bubble of zb_h2 is (p-1)(F+I-2W); searched schedules have 0.1 to 0.4 % in eight of nine profiles (arXiv:2401.10241, table 5).
  if (stack.searched_schedules && config.parallel.schedule == "zb_h2")
    for (PartSeconds& stage : costs.stages) stage.forward = stage.input_gradient = stage.weight_gradient = stage.total() / 3;
  costs.staggered = is_staggered(stack, config.parallel.schedule);
  costs.host = stack.rank_seconds * (shards - 1);
  costs.slowest = static_cast<int>(std::ranges::max_element(ranks, {}, &RankLoad::compute) - ranks.begin());
  for (size_t i = 0; i < stage_rank.size(); ++i)
    if (stage_rank[i] == costs.slowest) costs.stages[i].slow_down(straggler_factor(config, cluster));
  return costs;
}

}  // namespace trireme
