#include "trainer/plan/memory/trireme_memory.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <numeric>
#include <optional>

#include "kernels/ops/muon.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "parallel/sharding/unit.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/recompute.h"
#include "trainer/plan/gradient_seconds.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

/// Bytes of one part of a stage for one micro-batch. The last four are the peaks during that action, including what the part held before and the
/// incoming gradient.
struct PartBytes {
  double saved = 0;  ///< from its forward to its backward
  double kept = 0;   ///< from I to W
  double forward = 0, backward = 0, input_gradient = 0, weight_gradient = 0;
};

PartBytes bytes_of(const PartProfile& profile) {
  const auto bytes = [](int64_t count) { return static_cast<double>(count); };
  return {bytes(profile.saved),
          bytes(profile.kept),
          bytes(profile.forward.peak),
          bytes(profile.backward.peak),
          bytes(profile.input_gradient.peak),
          bytes(profile.weight_gradient.peak)};
}

struct HeldPart {
  PartBytes bytes;
  std::vector<size_t> units;  ///< indices into StageMemory::units
};

/// Peak bytes of a stage for one micro-batch during each action, and bytes held between actions.
struct StageMemory {
  std::vector<HeldPart> parts;
  std::vector<double> units;                      ///< elements of all shards, padding included
  std::vector<bool> trains;                       ///< by unit
  std::vector<size_t> whole;                      ///< units that are gathered once a step
  double matrices = 0;                            ///< elements of this tensor rank's parts of hidden matrices
  double orthogonalize = 0;                       ///< elements that ORTHOGONALIZE takes where most matrices are dealt to
  std::vector<std::pair<size_t, size_t>> adders;  ///< by unit: first and last part that adds to its gradient
  bool head_adds = false;                         ///< a tied head in another stage of this rank adds to the first unit's gradient
  double saved = 0, kept = 0;
  PartBytes activations;                    ///< all parts: peak of each action
  PartBytes with_units;                     ///< the same plus gathered parameters and full gradients
  double gathered = 0, full_gradients = 0;  ///< peak bytes of these two
  double trained = 0, largest = 0;          ///< elements of units that train, and of the largest of them
  double beyond = 0;                        ///< additional prefetched bytes of a single-part stage if the next action belongs to another stage
  /// The same for the parts with which a backward, or its W, begins: from the last one to the one behind which a gradient is reduced.
  double first_backward = 0, first_weight_gradient = 0, first_gradients = 0;
  double lingering = 0;               ///< last gradient of a backward; its reduction ends with the first reduction of the rank's next backward
  bool begins_where_it_ends = false;  ///< the next backward adds to that same gradient first, so it waits for the reduction
  bool head_alone = false;            ///< its I adds to the gradient
  double reduced_alone = 0;           ///< gradients of a single-part stage while the first of its units is reduced, with the result
};

/// The trained unit to which a backward adds last; nullopt if the stage is frozen.
std::optional<size_t> last_trained(const StageMemory& stage) {
  for (const HeldPart& part : stage.parts)
    for (size_t u = part.units.size(); u-- > 0;)
      if (stage.trains[part.units[u]]) return part.units[u];
  return std::nullopt;
}

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

class StageMemoryModel {
 public:
  StageMemoryModel(const Config& config, PartProfiles& profiles);
  std::vector<RankBytes> ranks(const ActionLists& lists);

 private:
  bool alike(const StageRange& before, const StageRange& here) const;
  StageMemory stage(const StageRange& range, bool first_stage_is_local) const;
  void set_matrices(StageMemory& stage, const std::vector<Part>& parts) const;
  void set_peaks(StageMemory& stage) const;
  double gathered(const StageMemory& stage, size_t part, bool forward, int64_t uses) const;
  double full_gradients(const StageMemory& stage, size_t part) const;
  double in_reduction() const;
  bool encodes_parameters() const { return config_.training.compression.parameters != ParameterEncoding::kNone && policy_.shard > 1; }
  RankBytes rank(const ActionList& list, const std::vector<const StageMemory*>& stages, const std::vector<int>& stage_rank, int index) const;

  const Config& config_;
  ZeroPolicy policy_;
  Precision precision_;
  PartProfiles& profiles_;
  ProfileShape shape_;
  std::vector<Recompute> recompute_;
  double boundary_;           ///< bytes of a stage-boundary activation
  double largest_block_ = 0;  ///< elements
  int64_t blocks_per_unit_;
};

StageMemoryModel::StageMemoryModel(const Config& config, PartProfiles& profiles)
    : config_(config),
      policy_(zero_policy(config.parallel)),
      precision_(precision_of(config.training)),
      profiles_(profiles),
      shape_(profile_shape(config)),
      recompute_(recompute_policy(config)),
      boundary_(static_cast<double>(config.training.micro_batch_size * config.training.sequence_length * config.model.hidden_size *
                                    size_of(precision_.compute) / (config.parallel.sequence_parallel ? config.parallel.tensor : 1))),
      blocks_per_unit_(blocks_per_unit(config)) {
  for (const Part& part : profiles_.parts())
    if (part.kind == PartKind::kBlock) largest_block_ = std::max(largest_block_, static_cast<double>(profiles_.of(part, shape_).elements()));
}

/// Whether stage `here` consists of the same blocks as the stage before it, without embedding or head in either.
bool StageMemoryModel::alike(const StageRange& before, const StageRange& here) const {
  const auto blocks = recompute_.begin();
  const auto parts = profiles_.parts().begin() + 1;
  return !before.first() && !here.last() && here.blocks == before.blocks &&
         std::equal(blocks + here.first_block, blocks + here.first_block + here.blocks, blocks + before.first_block) &&
         std::equal(parts + here.first_block, parts + here.first_block + here.blocks, parts + before.first_block,
                    [](const Part& a, const Part& b) { return a.traits() == b.traits(); });
}

/// The hidden matrices and, with an optimizer of matrices, what MatrixExchange::transform() and newton_schulz() take at their peak.
void StageMemoryModel::set_matrices(StageMemory& stage, const std::vector<Part>& parts) const {
  std::vector<MatrixShape> shapes;
  for (const Part& part : parts) std::ranges::copy(profiles_.of(part, shape_).matrices, std::back_inserter(shapes));
  double transformation = 0;
  for (const auto& [rows, columns] : shapes) {
    const auto least = static_cast<double>(std::min(rows, columns)), all = static_cast<double>(rows * columns);
    const bool converts = rows > columns && exchanged_dtype(precision_) == DType::kBF16;  // the product of a tall matrix with itself is fp32
    transformation = std::max(transformation, (converts ? 4 : 2) * least * least + all);
    stage.matrices += all / static_cast<double>(config_.parallel.tensor);
  }
  if (shapes.empty() || !traits_of(config_.training.optimizer.name.value()).updates_matrices) return;
  const auto tensor = static_cast<int>(config_.parallel.tensor);
  const DealtMatrices dealt = deal(shapes, newton_schulz_flops, policy_.shard, tensor);
  const double pieces = stage.matrices / policy_.shard, parts_held = dealt.most_parts, whole = tensor > 1 ? dealt.most_matrices : 0;
  const double exchanges = tensor > 1          ? parts_held + std::max(parts_held + whole, 2 * whole)
                           : policy_.shard > 1 ? parts_held + std::max(parts_held, pieces)
                                               : 2 * parts_held;
  stage.orthogonalize = std::max(exchanges, parts_held + whole + transformation);
}

StageMemory StageMemoryModel::stage(const StageRange& range, bool first_stage_is_local) const {
  StageMemory stage;
  const std::vector<Part> parts = parts_of(config_.model, range, blocks_per_unit_);
  const StageUnits reads = stage_units(parts, range, config_.model, first_stage_is_local);
  stage.head_adds = range.first() && first_stage_is_local && config_.model.tied_embeddings;
  for (const int64_t elements : unit_elements(profiles_, parts, reads, shape_))
    stage.units.push_back(static_cast<double>(Unit::shard_numel(elements, policy_.shard) * policy_.shard));
  stage.trains.assign(stage.units.size(), true);
  for (size_t i = 0; i < parts.size(); ++i) {
    const Recompute recompute = recompute_of(parts[i], recompute_);
    HeldPart& part = stage.parts.emplace_back(HeldPart{bytes_of(profiles_.of(parts[i], shape_, recompute)), {}});
    for (size_t u = 0; u < parts[i].units.size(); ++u) {
      const UnitRef& unit = reads.units_of_part[i][u];
      if (unit.stage >= 0) continue;
      part.units.push_back(static_cast<size_t>(unit.unit));
      stage.trains[part.units.back()] = parts[i].units[u].trainable;
    }
  }
  for (size_t unit = 0; unit < stage.units.size(); ++unit) {
    if (!stage.trains[unit]) continue;
    stage.trained += stage.units[unit];
    stage.largest = std::max(stage.largest, stage.units[unit]);
  }
  stage.whole.assign(reads.kept_whole.begin(), reads.kept_whole.end());
  set_matrices(stage, parts);
  stage.head_alone = parts.size() == 1 && parts.front().kind == PartKind::kHead;
  set_peaks(stage);
  return stage;
}

/// Bytes of full parameter copies alive while a part runs: those that it reads and those prefetched, and their messages, until each is decoded.
double StageMemoryModel::gathered(const StageMemory& stage, size_t part, bool forward, int64_t uses) const {
  if (policy_.parameters_resident) return 0;
  const double element = static_cast<double>(size_of(precision_.compute)) + (encodes_parameters() ? parameter_message_bytes(config_) : 0);
  if (!policy_.unshard_each_use) return element * std::accumulate(stage.units.begin(), stage.units.end(), 0.0);
  std::vector<size_t> alive = stage.whole;
  double elements = 0;
  for (const size_t unit : alive) elements += stage.units[unit];
  for (int64_t ahead = 0; ahead < uses; ++ahead) {
    const int64_t at = static_cast<int64_t>(part) + (forward ? ahead : -ahead);
    if (at < 0 || at >= static_cast<int64_t>(stage.parts.size())) {
      // Prefetch continues with the first blocks of the rank's next stage.
      if (*config_.parallel.virtual_stages > 1 && stage.parts.size() > 1) elements += static_cast<double>(uses - ahead) * largest_block_;
      break;
    }
    for (const size_t unit : stage.parts[static_cast<size_t>(at)].units) {
      if (std::ranges::find(alive, unit) != alive.end()) continue;
      alive.push_back(unit);
      elements += stage.units[unit];
    }
  }
  return element * elements;
}

/// Elements of a full gradient that take as much as one does while it is reduced, with the result.
double StageMemoryModel::in_reduction() const {
  return 1 + static_cast<double>(size_of(precision_.reduce)) / static_cast<double>(size_of(precision_.gradient)) / policy_.shard;
}

/// Bytes of full gradients during the backward of a part: units to which the part, or parts both before and after it, add (a tied embedding, from
/// head to embedding); and the last unit that is complete, which is being reduced until the next one is, with the result of its reduction.
double StageMemoryModel::full_gradients(const StageMemory& stage, size_t part) const {
  if (policy_.gradients_resident) return 0;
  double elements = 0, reducing = 0;
  size_t since = stage.parts.size();
  for (size_t unit = 0; unit < stage.units.size(); ++unit) {
    if (!stage.trains[unit]) continue;
    const auto [first, last] = stage.adders[unit];
    if (first <= part && part <= last) elements += stage.units[unit];
    if (first <= part || first > since) continue;
    since = first;
    reducing = stage.units[unit];
  }
  return static_cast<double>(size_of(precision_.gradient)) * (elements + reducing * in_reduction());
}

/// While a part runs, parts that have done F hold `saved` bytes, and parts that have done I hold the `kept` bytes for W.
void StageMemoryModel::set_peaks(StageMemory& stage) const {
  for (const HeldPart& part : stage.parts) {
    stage.saved += part.bytes.saved;
    stage.kept += part.bytes.kept;
  }
  stage.adders.assign(stage.units.size(), {stage.parts.size(), 0});
  for (size_t i = 0; i < stage.parts.size(); ++i)
    for (const size_t unit : stage.parts[i].units) stage.adders[unit] = {std::min(stage.adders[unit].first, i), i};
  if (stage.head_adds) stage.adders.front().second = stage.parts.size();
  const int64_t ahead = config_.parallel.prefetch;
  if (*config_.parallel.virtual_stages > 1 && stage.parts.size() == 1 && !policy_.parameters_resident && policy_.unshard_each_use)
    stage.beyond = static_cast<double>(size_of(precision_.compute) * ahead) * largest_block_;
  if (const auto final_unit = last_trained(stage); final_unit && !policy_.gradients_resident) {
    const auto element = static_cast<double>(size_of(precision_.gradient));
    stage.begins_where_it_ends = stage.adders[*final_unit].second + 1 == stage.parts.size();
    stage.lingering = element * stage.units[*final_unit] * in_reduction();
    if (stage.parts.size() == 1) stage.reduced_alone = element * (stage.trained + stage.largest / policy_.shard);
  }
  PartBytes held{};  // bytes held by the other parts while one runs
  held.forward = 0;
  held.input_gradient = stage.saved;
  held.backward = stage.saved;
  const auto raise = [](double& peak, double bytes) { peak = std::max(peak, bytes); };
  for (size_t i = 0; i < stage.parts.size(); ++i) {
    const PartBytes& part = stage.parts[i].bytes;
    const double units = gathered(stage, i, true, ahead + 1);
    raise(stage.activations.forward, held.forward + part.forward);
    raise(stage.with_units.forward, held.forward + part.forward + units);
    raise(stage.gathered, units);
    held.forward += part.saved;
  }
  // W reads no parameters; meanwhile those of the next F or I are already prefetched.
  const double next_use = std::max(gathered(stage, 0, true, ahead), gathered(stage, stage.parts.size() - 1, false, ahead));
  double weights = stage.kept;
  bool reduces = false;
  for (size_t i = stage.parts.size(); i-- > 0;) {
    const PartBytes& part = stage.parts[i].bytes;
    const double units = gathered(stage, i, false, ahead + 1), gradients = full_gradients(stage, i);
    held.backward -= part.saved;
    held.input_gradient -= part.saved;
    raise(stage.activations.backward, held.backward + part.backward);
    raise(stage.with_units.backward, held.backward + part.backward + units + gradients);
    raise(stage.activations.input_gradient, held.input_gradient + part.input_gradient);
    raise(stage.with_units.input_gradient, held.input_gradient + part.input_gradient + units);
    raise(stage.activations.weight_gradient, weights - part.kept + part.weight_gradient);
    raise(stage.with_units.weight_gradient, weights - part.kept + part.weight_gradient + gradients + next_use);
    raise(stage.gathered, units);
    raise(stage.full_gradients, gradients);
    if (!reduces) {
      stage.first_backward = stage.with_units.backward;
      stage.first_weight_gradient = stage.with_units.weight_gradient;
      raise(stage.first_gradients, gradients);
    }
    for (size_t unit = 0; unit < stage.units.size(); ++unit) reduces = reduces || (stage.trains[unit] && stage.adders[unit].first == i);
    held.input_gradient += part.kept;
    weights -= part.kept;
  }
}

RankBytes StageMemoryModel::rank(const ActionList& list, const std::vector<const StageMemory*>& stages, const std::vector<int>& stage_rank,
                                 int index) const {
  RankBytes bytes;
  double elements = 0, trained = 0, largest = 0, matrices = 0, orthogonalize = 0;
  int local = 0;
  double gathered = 0;
  bool has_blocks = false;
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stage_rank[s] != index) continue;
    gathered += stages[s]->gathered;
    has_blocks = has_blocks || stages[s]->parts.size() > 1 || (s > 0 && s + 1 < stages.size());
  }
  // Without blocks on the rank, an embedding alone is followed by a head alone.
  const auto beyond_of = [&](const StageMemory& stage) { return has_blocks || stage.beyond == 0 ? stage.beyond : gathered - stage.gathered; };
  for (size_t s = 0; s < stages.size(); ++s) {
    if (stage_rank[s] != index) continue;
    ++local;
    elements += std::accumulate(stages[s]->units.begin(), stages[s]->units.end(), 0.0);
    trained += stages[s]->trained;
    largest = std::max(largest, stages[s]->largest);
    matrices += stages[s]->matrices;
    orthogonalize = std::max(orthogonalize, stages[s]->orthogonalize);
    bytes.parameters = std::max(bytes.parameters, stages[s]->gathered + beyond_of(*stages[s]));
  }
  const auto element = static_cast<double>(size_of(precision_.compute)), wide = static_cast<double>(size_of(precision_.master));
  const bool apart = precision_.master != precision_.compute || (encodes_parameters() && policy_.parameters_resident);
  const int64_t secondary = config_.parallel.secondary_shards;
  // A frozen unit is its own master, unless its gathers are encoded.
  const double mastered = encodes_parameters() ? elements : trained;
  const double parameters = element * ((policy_.parameters_resident ? elements : (apart ? elements - mastered : elements) / policy_.shard) +
                                       (secondary > 0 ? elements / static_cast<double>(secondary) : 0));
  const ReducerBytes reducers = reducer_bytes(config_, policy_, precision_, trained, largest);
  const double gradients =
      static_cast<double>(size_of(precision_.gradient)) * (policy_.gradients_resident ? trained : trained / policy_.shard) + reducers.gradients;
  bytes.parameters += parameters;
  const TrainingConfig& training = config_.training;
  const LocalConfig& rounds = training.local;
  const bool averages = averages_elastically(training);
  const auto states = static_cast<double>(state_count(training, false) + (rounds.steps ? 2 : averages ? 1 : 0));
  bytes.optimizer = ((apart ? states + 1 : states) * wide * trained + (apart ? wide * (mastered - trained) : 0)) / policy_.shard;
  bytes.optimizer += static_cast<double>(state_count(training, true) - state_count(training, false)) * wide * matrices / policy_.shard;
  bytes.optimizer += reducers.states;
  bytes.other =
      static_cast<double>(2 * sizeof(int32_t) * static_cast<size_t>(training.micro_batch_size * microbatches_of(config_) * training.sequence_length));
  // The parts of servers (trainer/islands/parameter_server.h).
  const double owned = trained / policy_.shard, narrow = static_cast<double>(size_of(precision_.gradient));
  const auto islands = static_cast<double>(config_.parallel.islands);
  if (averages) bytes.other += wide * owned * (islands - 1) / islands;
  if (has_parameter_servers(training)) {
    bytes.optimizer += wide * owned / islands;
    if (training.asynchronous.apply_after > 1) bytes.optimizer += narrow * owned / islands;
    if (training.asynchronous.compensation == StalenessCompensation::kDelay) bytes.optimizer += wide * owned;
    bytes.other += narrow * owned * (islands - 1) / islands;
  }
  // About the largest fragment, whose sum is in flight.
  if (rounds.delay > 0) bytes.other += wide * trained / policy_.shard / static_cast<double>(rounds.fragments);
  bytes.other += static_cast<double>(local * rope_table_elements(config_.model) * size_of(accumulator_of(precision_.compute)));

  // In flight between stages: an output not yet sent; a gradient once backwards have begun; an input received ahead while inputs remain.
  const auto last = static_cast<int>(stages.size()) - 1;
  const bool pipelined = config_.parallel.pipeline > 1, before = pipelined && (local > 1 || stage_rank.front() != index),
             behind = pipelined && (local > 1 || stage_rank[static_cast<size_t>(last)] != index);
  // If the rank of the last stage has several stages, it holds a gradient of its own while the next one for its other stage arrives.
  const bool turns = pipelined && local > 1 && stage_rank[static_cast<size_t>(last)] == index;
  auto inputs = std::ranges::count(list, ActionType::kForward, &Action::type);
  int reduced = -1;  // the stage with a last gradient still in reduction, until the rank's next reduction
  bool gradients_flow = false;
  double held = 0, most = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    const Action& action = list[i];
    const StageMemory& stage = *stages[static_cast<size_t>(action.stage)];
    const double beyond = i + 1 < list.size() && list[i + 1].stage != action.stage ? beyond_of(stage) : 0;
    const double alone = stage.reduced_alone > 0 ? stage.reduced_alone + stage.gathered : 0;
    if (action.type == ActionType::kForward) --inputs;
    const double lingering = reduced < 0 ? 0 : stages[static_cast<size_t>(reduced)]->lingering;
    const double at_last_part = reduced == action.stage && stage.begins_where_it_ends ? 0 : lingering;
    const double moving = boundary_ * ((behind ? 1 : 0) + (turns ? 1 : 0) + (before && gradients_flow ? 1 : 0) + (before && inputs > 0 ? 1 : 0));
    const auto raise = [&](double with_units, double activations) {
      most = std::max(most, held + moving + beyond + with_units);
      bytes.activations = std::max(bytes.activations, held + moving + activations);
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
    bytes.gradients = std::max({bytes.gradients, stage.full_gradients, stage.first_gradients + at_last_part, stage.reduced_alone});
    reduced = action.stage;
  }
  bytes.gradients += gradients;
  const double workspace = static_cast<double>(size_of(exchanged_dtype(precision_))) * orthogonalize;  // after everything else
  // The narrow copy of a gradient that lives for one backward is gone when the next part runs.
  const double beside = policy_.gradients_resident ? reducers.scattered : 0;
  bytes.peak = parameters + gradients + bytes.optimizer + bytes.other + std::max({most + beside, reducers.summed, workspace});
  bytes.other += std::max({reducers.scattered, reducers.summed, workspace});
  return bytes;
}

std::vector<RankBytes> StageMemoryModel::ranks(const ActionLists& lists) {
  const std::vector<int> stage_rank = stage_ranks(lists);
  const bool neighbours = stage_rank.size() > 1 && stage_rank.front() == stage_rank.back();
  std::deque<StageMemory> different;  // one entry for consecutive equal stages
  std::vector<const StageMemory*> stages;
  const std::vector<StageRange> ranges = stage_ranges(*config_.parallel.layers_per_stage);
  for (size_t s = 0; s < ranges.size(); ++s)
    stages.push_back(s > 0 && alike(ranges[s - 1], ranges[s]) ? stages.back() : &different.emplace_back(stage(ranges[s], neighbours)));
  std::vector<RankBytes> ranks;
  for (int r = 0; r < static_cast<int>(lists.size()); ++r) ranks.push_back(rank(lists[static_cast<size_t>(r)], stages, stage_rank, r));
  return ranks;
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
  return StageMemoryModel(config, profiles).ranks(lists);
}

}  // namespace trireme
