#include "trainer/plan/memory/stage_memory.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <optional>

#include "kernels/ops/muon.h"
#include "parallel/sharding/matrix_exchange.h"
#include "parallel/sharding/unit.h"
#include "trainer/plan/gradient_seconds.h"

namespace trireme {
namespace {

PartBytes bytes_of(const PartProfile& profile) {
  const auto bytes = [](int64_t count) { return static_cast<double>(count); };
  return {bytes(profile.saved),
          bytes(profile.kept),
          bytes(profile.forward.peak),
          bytes(profile.backward.peak),
          bytes(profile.input_gradient.peak),
          bytes(profile.weight_gradient.peak)};
}

/// The trained unit to which a backward adds last; nullopt if the stage is frozen.
std::optional<size_t> last_trained(const StageMemory& stage) {
  for (const HeldPart& part : stage.parts)
    for (size_t u = part.units.size(); u-- > 0;)
      if (stage.trains[part.units[u]]) return part.units[u];
  return std::nullopt;
}

}  // namespace

bool encodes_parameters(const Config& config) {
  return config.training.compression.parameters != ParameterEncoding::kNone && zero_policy(config.parallel).shard > 1;
}

StageMemoryModel::StageMemoryModel(const Config& config, PartProfiles& profiles)
    : config_(config),
      policy_(zero_policy(config.parallel)),
      precision_(precision_of(config.training)),
      profiles_(profiles),
      shape_(profile_shape(config)),
      recompute_(recompute_policy(config)),
      blocks_per_unit_(blocks_per_unit(config)) {
  for (const Part& part : profiles_.parts())
    if (part.kind == PartKind::kBlock) largest_block_ = std::max(largest_block_, static_cast<double>(profiles_.of(part, shape_).elements()));
}

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

StageMemory StageMemoryModel::of(const StageRange& range, bool first_stage_is_local) const {
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
  const double element = static_cast<double>(size_of(precision_.compute)) + (encodes_parameters(config_) ? parameter_message_bytes(config_) : 0);
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

}  // namespace trireme
