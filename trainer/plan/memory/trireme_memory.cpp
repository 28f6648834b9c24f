#include "trainer/plan/memory/trireme_memory.h"

#include <algorithm>
#include <deque>
#include <numeric>

#include "trainer/plan/gradient_seconds.h"
#include "trainer/plan/memory/stage_memory.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

/// Bytes of a rank's reducers, as their headers state them.
struct ReducerBytes {
  double states = 0;     ///< errors and momenta
  double gradients = 0;  ///< of each data rank, for a robust rule
  double scattered = 0;  ///< messages, or a narrow copy, of the unit that is scattered during a backward
  double summed = 0;     ///< the same of all units whose shards replicas sum behind the last backward
};

/// `trained` and `largest`: elements of the rank's trained units, and of one of them, all shards. Not counted: the bases of power_sgd, which are as
/// narrow as its rank, and the messages of power_sgd and of robust rules.
ReducerBytes reducer_bytes(const Config& config, const ZeroPolicy& policy, const Precision& precision, double trained, double largest) {
  const CompressionConfig& compression = config.training.compression;
  const AggregationConfig& aggregation = config.security.aggregation;
  const bool compresses = compression.method != CompressionMethod::kNone, feeds_back = compresses && compression.error_feedback;
  const bool narrows = precision.reduce != precision.gradient;
  const double replicas = policy.replicate, own = trained / policy.shard,
               message = compresses ? 2 * gradient_message_bytes(config, stack_of("trireme")) : static_cast<double>(size_of(precision.reduce));
  const bool scatters = policy.shard > 1 && compression.scope == CompressionScope::kData, sums = policy.replicate > 1;
  const auto element = static_cast<double>(size_of(precision.gradient)), errors = element * (trained + own);
  if (aggregation.rule != AggregationRule::kMean)
    return {(aggregation.momentum.value() > 0 ? element * trained : 0) + (feeds_back ? errors : 0), element * (trained + own / replicas)};
  if (compression.method == CompressionMethod::kPowerSgd) return {feeds_back && (policy.shard > 1 || sums) ? errors : 0};
  if (!compresses && !narrows) return {};
  return {.states = feeds_back ? (scatters ? errors : 0) + (sums ? element * 2 * own * (1 + 1 / replicas) : 0) : 0,
          .scattered = scatters ? message * largest : 0,
          .summed = sums ? message * own : 0};
}

/// Memory of one pipeline rank: what it holds for the whole step, and the most that the actions of its list add to that.
class RankMemoryModel {
 public:
  /// `stages`: those of the model. `stage_rank`: the rank of each; this one is `index`.
  RankMemoryModel(const Config& config, const std::vector<const StageMemory*>& stages, const std::vector<int>& stage_rank, int index);
  RankBytes bytes(const ActionList& list);

 private:
  double parameters() const;
  double optimizer() const;
  double other() const;
  double beyond(const StageMemory& stage) const;
  void run(const ActionList& list);

  const Config& config_;
  const ZeroPolicy policy_;
  const Precision precision_;
  const std::vector<const StageMemory*>& stages_;
  double elements_ = 0, trained_ = 0, largest_ = 0;  ///< elements of its units: all, those that train, the largest of these
  double mastered_ = 0;                              ///< elements of units with a master. A frozen unit is its own, unless its gathers are encoded
  double matrices_ = 0, orthogonalize_ = 0;          ///< as in StageMemory
  double gathered_ = 0;                              ///< bytes that its stages gather, all together
  int count_ = 0;                                    ///< its stages
  bool has_blocks_ = false;
  bool first_ = false, last_ = false;  ///< it has the first, or the last, stage of the model
  bool apart_;                         ///< masters are not the parameters themselves
  ReducerBytes reducers_;
  /// Most bytes of what lives within a step: gathered parameters, full gradients, activations, and all that at once.
  double parameters_in_use_ = 0, gradients_in_use_ = 0, activations_ = 0, most_ = 0;
};

RankMemoryModel::RankMemoryModel(const Config& config, const std::vector<const StageMemory*>& stages, const std::vector<int>& stage_rank, int index)
    : config_(config), policy_(zero_policy(config.parallel)), precision_(precision_of(config.training)), stages_(stages) {
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stage_rank[s] != index) continue;
    const StageMemory& stage = *stages[s];
    ++count_;
    gathered_ += stage.gathered;
    has_blocks_ = has_blocks_ || stage.parts.size() > 1 || (s > 0 && s + 1 < stages.size());
    elements_ += std::accumulate(stage.units.begin(), stage.units.end(), 0.0);
    trained_ += stage.trained;
    largest_ = std::max(largest_, stage.largest);
    matrices_ += stage.matrices;
    orthogonalize_ = std::max(orthogonalize_, stage.orthogonalize);
  }
  for (size_t s = 0; s < stages.size(); ++s)
    if (stage_rank[s] == index) parameters_in_use_ = std::max(parameters_in_use_, stages[s]->gathered + beyond(*stages[s]));
  first_ = stage_rank.front() == index;
  last_ = stage_rank.back() == index;
  const bool encodes = encodes_parameters(config);
  mastered_ = encodes ? elements_ : trained_;
  apart_ = precision_.master != precision_.compute || (encodes && policy_.parameters_resident);
  reducers_ = reducer_bytes(config, policy_, precision_, trained_, largest_);
}

/// Without blocks on the rank, an embedding alone is followed by a head alone.
double RankMemoryModel::beyond(const StageMemory& stage) const {
  return has_blocks_ || stage.beyond == 0 ? stage.beyond : gathered_ - stage.gathered;
}

double RankMemoryModel::parameters() const {
  const int64_t secondary = config_.parallel.secondary_shards;
  return static_cast<double>(size_of(precision_.compute)) *
         ((policy_.parameters_resident ? elements_ : (apart_ ? elements_ - mastered_ : elements_) / policy_.shard) +
          (secondary > 0 ? elements_ / static_cast<double>(secondary) : 0));
}

double RankMemoryModel::optimizer() const {
  const TrainingConfig& training = config_.training;
  const double wide = static_cast<double>(size_of(precision_.master)), owned = trained_ / policy_.shard;
  const auto states = static_cast<double>(state_count(training, false) + (training.local.steps ? 2 : averages_elastically(training) ? 1 : 0));
  double bytes = ((apart_ ? states + 1 : states) * wide * trained_ + (apart_ ? wide * (mastered_ - trained_) : 0)) / policy_.shard;
  bytes += static_cast<double>(state_count(training, true) - state_count(training, false)) * wide * matrices_ / policy_.shard;
  bytes += reducers_.states;
  if (!has_parameter_servers(training)) return bytes;
  // The parts of servers (trainer/islands/parameter_server.h).
  const auto islands = static_cast<double>(config_.parallel.islands);
  bytes += wide * owned / islands;
  if (training.asynchronous.apply_after > 1) bytes += static_cast<double>(size_of(precision_.gradient)) * owned / islands;
  if (training.asynchronous.compensation == StalenessCompensation::kDelay) bytes += wide * owned;
  return bytes;
}

/// Token ids, the memory of exchanges between islands, and rotary tables.
double RankMemoryModel::other() const {
  const TrainingConfig& training = config_.training;
  const double wide = static_cast<double>(size_of(precision_.master)), owned = trained_ / policy_.shard;
  const auto islands = static_cast<double>(config_.parallel.islands);
  auto bytes =
      static_cast<double>(2 * sizeof(int32_t) * static_cast<size_t>(training.micro_batch_size * microbatches_of(config_) * training.sequence_length));
  if (averages_elastically(training)) bytes += wide * owned * (islands - 1) / islands;
  if (has_parameter_servers(training)) bytes += static_cast<double>(size_of(precision_.gradient)) * owned * (islands - 1) / islands;
  // About the largest fragment, whose sum is in flight.
  if (training.local.delay > 0) bytes += wide * owned / static_cast<double>(training.local.fragments);
  return bytes + static_cast<double>(count_ * rope_table_elements(config_.model) * size_of(accumulator_of(precision_.compute)));
}

void RankMemoryModel::run(const ActionList& list) {
  // In flight between stages: an output not yet sent; a gradient once backwards have begun; an input received ahead while inputs remain.
  const auto boundary = static_cast<double>(config_.training.micro_batch_size * config_.training.sequence_length * config_.model.hidden_size *
                                            size_of(precision_.compute) / (config_.parallel.sequence_parallel ? config_.parallel.tensor : 1));
  const bool pipelined = config_.parallel.pipeline > 1, before = pipelined && (count_ > 1 || !first_), behind = pipelined && (count_ > 1 || !last_);
  // If the rank of the last stage has several stages, it holds a gradient of its own while the next one for its other stage arrives.
  const bool turns = pipelined && count_ > 1 && last_;
  auto inputs = std::ranges::count(list, ActionType::kForward, &Action::type);
  int reduced = -1;  // the stage with a last gradient still in reduction, until the rank's next reduction
  bool gradients_flow = false;
  double held = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const StageMemory& stage = *stages_[static_cast<size_t>(action.stage)];
    const double ahead = i + 1 < list.size() && list[i + 1].stage != action.stage ? beyond(stage) : 0;
    const double alone = stage.reduced_alone > 0 ? stage.reduced_alone + stage.gathered : 0;
    if (action.type == ActionType::kForward) --inputs;
    const double lingering = reduced < 0 ? 0 : stages_[static_cast<size_t>(reduced)]->lingering;
    const double at_last_part = reduced == action.stage && stage.begins_where_it_ends ? 0 : lingering;
    const double moving = boundary * ((behind ? 1 : 0) + (turns ? 1 : 0) + (before && gradients_flow ? 1 : 0) + (before && inputs > 0 ? 1 : 0));
    const auto raise = [&](double with_units, double activations) {
      most_ = std::max(most_, held + moving + ahead + with_units);
      activations_ = std::max(activations_, held + moving + activations);
    };
    switch (action.type) {
      case ActionType::kForward:
        raise(stage.with_units.forward + lingering, stage.activations.forward);
        held += stage.saved;
        break;
      case ActionType::kBackward:
        held -= stage.saved;
        raise(std::max({stage.with_units.backward, stage.first_backward + at_last_part, alone}), stage.activations.backward);
        break;
      case ActionType::kBackwardInput:
        held -= stage.saved;
        raise(stage.head_alone ? std::max(stage.with_units.input_gradient + stage.first_gradients + at_last_part, alone)
                               : stage.with_units.input_gradient + lingering,
              stage.activations.input_gradient);
        held += stage.kept;
        break;
      case ActionType::kBackwardWeight:
        held -= stage.kept;
        raise(std::max({stage.with_units.weight_gradient, stage.first_weight_gradient + at_last_part, alone}), stage.activations.weight_gradient);
        break;
      default: break;
    }
    gradients_flow = gradients_flow || action.type != ActionType::kForward;
    if (action.type != ActionType::kBackward && action.type != ActionType::kBackwardWeight) continue;
    gradients_in_use_ = std::max({gradients_in_use_, stage.full_gradients, stage.first_gradients + at_last_part, stage.reduced_alone});
    reduced = action.stage;
  }
}

RankBytes RankMemoryModel::bytes(const ActionList& list) {
  run(list);
  RankBytes bytes;
  const double held_parameters = parameters();
  const double held_gradients =
      static_cast<double>(size_of(precision_.gradient)) * (policy_.gradients_resident ? trained_ : trained_ / policy_.shard) + reducers_.gradients;
  bytes.parameters = parameters_in_use_ + held_parameters;
  bytes.gradients = gradients_in_use_ + held_gradients;
  bytes.activations = activations_;
  bytes.optimizer = optimizer();
  bytes.other = other();
  const double workspace = static_cast<double>(size_of(exchanged_dtype(precision_))) * orthogonalize_;  // after everything else
  // The narrow copy of a gradient that lives for one backward is gone when the next part runs.
  const double beside = policy_.gradients_resident ? reducers_.scattered : 0;
  bytes.peak = held_parameters + held_gradients + bytes.optimizer + bytes.other + std::max({most_ + beside, reducers_.summed, workspace});
  bytes.other += std::max({reducers_.scattered, reducers_.summed, workspace});
  return bytes;
}

/// Number of micro-batches of with_steady_microbatches().
int64_t steady_microbatches(const Config& config) {
  const bool differ = config.resilience.rebalance != Rebalance::kNone || !config.resilience.reroute.empty() || is_private(config.security);
  if (config.parallel.schedule == "file" || config.parallel.schedule == "gpipe" || differ) return microbatches_of(config);
  return steady_state_microbatches(config.parallel.pipeline, microbatches_of(config));
}

}  // namespace

int64_t steady_state_microbatches(int64_t ranks, int64_t microbatches) {
  // Interleaved schedules form floor(m / p) groups, of which the first ones may have one micro-batch more. Memory depends on the sizes of the groups
  // that are in flight together, so a few of each size suffice.
  constexpr int64_t kOfEach = 4;
  if (microbatches <= 8 * ranks) return microbatches;
  const int64_t groups = microbatches / ranks, large = microbatches % groups;
  const int64_t fewer_large = std::min(kOfEach, large), fewer = fewer_large + std::min(kOfEach, groups - large);
  return fewer * (microbatches / groups) + fewer_large;
}

Config with_steady_microbatches(const Config& config) {
  Config fewer = config;
  if (const int64_t steady = steady_microbatches(config); steady < microbatches_of(config))
    fewer.training.global_batch_size = config.training.micro_batch_size * *config.parallel.data * gradients_per_step(config) * steady;
  return fewer;
}

const ActionLists& steady_lists(const Config& config, StepSchedule& schedule) {
  return schedule.lists(static_cast<int>(steady_microbatches(config)));
}

std::vector<RankBytes> trireme_memory(const Config& config, PartProfiles& profiles, const ActionLists& lists) {
  const StageMemoryModel model(config, profiles);
  const std::vector<int> stage_rank = stage_ranks(lists);
  const bool neighbours = stage_rank.size() > 1 && stage_rank.front() == stage_rank.back();
  std::deque<StageMemory> different;  // one entry for consecutive equal stages
  std::vector<const StageMemory*> stages;
  const std::vector<StageRange> ranges = stage_ranges(*config.parallel.layers_per_stage);
  for (size_t s = 0; s < ranges.size(); ++s)
    stages.push_back(s > 0 && model.alike(ranges[s - 1], ranges[s]) ? stages.back() : &different.emplace_back(model.of(ranges[s], neighbours)));
  std::vector<RankBytes> ranks;
  for (int r = 0; r < static_cast<int>(lists.size()); ++r)
    ranks.push_back(RankMemoryModel(config, stages, stage_rank, r).bytes(lists[static_cast<size_t>(r)]));
  return ranks;
}

}  // namespace trireme
