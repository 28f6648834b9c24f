#include "parallel/sharding/sharded_optimizer.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "kernels/ops/elementwise.h"

namespace trireme {

ShardedOptimizer::ShardedOptimizer(Context& ctx, const ParamStore& params, const OptimizerOptions& options, const Precision& precision,
                                   Communicator& tensor)
    : options_(options), exchanged_(exchanged_dtype(precision)) {
  for (const Unit* unit : params.units()) {
    if (!unit->trainable()) {
      states_.emplace_back();
      owned_.emplace_back();
      continue;
    }
    std::vector<const char*> names;
    for (const Unit::Segment& whole : unit->segments(0, unit->numel()))
      for (const char* name : state_names_of(options.kind, whole.spec->is_hidden_matrix))
        if (std::ranges::find(names, std::string_view(name)) == names.end()) names.push_back(name);
    if (options.average_decay) names.push_back(kAverageName);
    std::vector<State>& states = states_.emplace_back();
    for (const char* name : names) {
      int64_t elements = unit->shard_numel();
      for (const Unit::Segment& segment : unit->owned_segments())
        if (!has_state(name, *segment.spec)) elements -= segment.count;
      states.push_back({name, Tensor::zeros(ctx, {elements}, precision.master, MemoryCategory::kOptimizer)});
    }
    add_segments(*unit, states);
  }
  if (traits_of(options.kind).updates_matrices) exchange_.emplace(params.units(), tensor, newton_schulz_flops);
}

bool ShardedOptimizer::has_state(const char* name, const ParamSpec& spec) const {
  const std::string_view wanted = name;
  const std::span<const char* const> names = state_names_of(options_.kind, spec.is_hidden_matrix);
  return wanted == kAverageName || std::ranges::find(names, wanted) != names.end();
}

/// Cuts a unit's states at its owned segments.
void ShardedOptimizer::add_segments(const Unit& unit, const std::vector<State>& states) {
  std::vector<OwnedSegment>& owned = owned_.emplace_back();
  std::vector<int64_t> begin(states.size(), 0);
  for (const Unit::Segment& segment : unit.owned_segments()) {
    OwnedSegment& added = owned.emplace_back(OwnedSegment{segment, {}});
    for (size_t k = 0; k < states.size(); ++k) {
      if (!has_state(states[k].name, *segment.spec)) continue;
      added.state.push_back({states[k].name, states[k].shard.flat(begin[k], segment.count)});
      begin[k] += segment.count;
    }
  }
}

std::vector<ShardedOptimizer::State> ShardedOptimizer::state_of(int unit, const Unit::Segment& part) const {
  if (!part.spec->trainable) return {};
  const std::vector<OwnedSegment>& owned = owned_[static_cast<size_t>(unit)];
  const auto whole = std::ranges::find(owned, part.spec, [](const OwnedSegment& one) { return one.segment.spec; });
  TRIREME_CHECK(whole != owned.end(), part.spec->name, " is not in the owned shard");
  std::vector<State> found;
  for (const auto& [name, shard] : whole->state) found.push_back({name, shard.flat(part.flat_begin - whole->segment.flat_begin, part.count)});
  return found;
}

void ShardedOptimizer::start_average(Context& ctx, const ParamStore& params) {
  if (!options_.average_decay) return;
  for (size_t u = 0; u < states_.size(); ++u)
    if (!states_[u].empty()) copy(ctx, params.master(static_cast<int>(u)), states_[u].back().shard);
}

std::vector<UpdateSlice> ShardedOptimizer::slices(const ParamStore& params, const GradStore& grads, int unit, Optimizer rule) const {
  const Unit& of = *params.units()[static_cast<size_t>(unit)];
  std::vector<UpdateSlice> slices;
  for (const auto& [segment, state] : owned_[static_cast<size_t>(unit)]) {
    if (update_rule_of(options_.kind, segment.spec->is_hidden_matrix) != rule) continue;
    const auto slice = [&, &owned = segment](const Tensor& shard_tensor) { return of.slice(shard_tensor, owned); };
    UpdateSlice& added = slices.emplace_back(UpdateSlice{.w = slice(params.master(unit)), .g = slice(grads.shard(unit)), .state = {}});
    added.decay = segment.spec->decay;
    added.matrix = segment.matrix_range();
    for (size_t k = 0; k < static_cast<size_t>(traits_of(rule).states); ++k) added.state[k] = state[k].shard;
  }
  return slices;
}

void ShardedOptimizer::orthogonalize(Context& ctx, const Tensor& scalars, const ParamStore& params, const GradStore& grads) {
  TRIREME_CHECK(exchange_, traits_of(options_.kind).name, " does not update whole matrices");
  if (exchange_->empty()) return;
  Tensor updates = Tensor::empty(ctx, {exchange_->elements()}, exchanged_, MemoryCategory::kWorkspace);
  for (const auto& [unit, segment, begin] : exchange_->pieces()) {
    const Unit& of = *params.units()[static_cast<size_t>(unit)];
    const Tensor momentum = state_of(unit, segment).front().shard;
    muon_momentum(ctx, options_.momentum, scalars, of.slice(grads.shard(unit), segment), momentum, updates.flat(begin, segment.count));
  }
  matrix_updates_ = exchange_->transform(ctx, std::exchange(updates, Tensor()), [&](const MatrixShape& shape, const Tensor& matrix) {
    newton_schulz(ctx, matrix, muon_scale(options_.scale, shape));
  });
  updates_to_apply_ = exchange_->pieces().size();
}

/// The update of a whole matrix takes the place of the gradient.
std::vector<UpdateSlice> ShardedOptimizer::matrix_slices(Context& ctx, const ParamStore& params, int unit) const {
  const Unit& of = *params.units()[static_cast<size_t>(unit)];
  std::vector<UpdateSlice> slices;
  for (const auto& [of_unit, segment, begin] : exchange_->pieces()) {
    if (of_unit != unit) continue;
    const Tensor weight = of.slice(params.master(unit), segment), update = matrix_updates_.flat(begin, segment.count);
    UpdateSlice& added = slices.emplace_back(UpdateSlice{.w = weight, .g = update, .state = {}, .decay = segment.spec->decay});
    if (update.dtype() == weight.dtype()) continue;
    added.g = Tensor::empty(ctx, {segment.count}, weight.dtype(), MemoryCategory::kWorkspace);
    copy(ctx, update, added.g);
  }
  return slices;
}

void ShardedOptimizer::update(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads, int unit) {
  const Optimizer others = traits_of(options_.kind).updates_matrices ? Optimizer::kAdamW : options_.kind;
  update_step(ctx, others, options_.hyper, scalars, slices(params, grads, unit, others));
  if (exchange_) {
    const std::vector<UpdateSlice> slices = matrix_slices(ctx, params, unit);
    update_step(ctx, options_.kind, options_.hyper, scalars, slices);
    updates_to_apply_ -= slices.size();
    if (updates_to_apply_ == 0) matrix_updates_.reset();
  }
  // The average follows the master weights: a 16-bit copy would round away what a step adds. The padding is zero in both.
  if (options_.average_decay) average_step(ctx, *options_.average_decay, scalars, params.master(unit), state(unit).back().shard);
  params.mark_stale(unit);
}

std::vector<Unit::Segment> counted_segments(const Unit& unit) {
  return counted_segments(unit, unit.owned_begin(), unit.owned_begin() + unit.shard_numel());
}

std::vector<Unit::Segment> counted_segments(const Unit& unit, int64_t begin, int64_t end) {
  std::vector<Unit::Segment> counted;
  for (Unit::Segment segment : unit.segments(begin, end)) {
    segment.count = segment.matrix_range().count();  // the end of a segment may be padding
    if (segment.spec->is_primary_copy && segment.count > 0) counted.push_back(segment);
  }
  return counted;
}

void add_gradient_squares(Context& ctx, const std::vector<Unit*>& units, const GradStore& grads, const Tensor& sum, NamedSquares* each) {
  std::vector<Tensor> counted;
  NamedSquares named;
  for (size_t u = 0; u < units.size(); ++u) {
    if (!units[u]->trainable()) continue;
    for (const Unit::Segment& segment : counted_segments(*units[u])) {
      counted.push_back(units[u]->slice(grads.shard(static_cast<int>(u)), segment));
      if (each != nullptr) named.emplace_back(segment.spec->name, 0);
    }
  }
  std::vector<double> squares(named.size());
  sum_of_squares(ctx, counted, sum, squares);
  for (size_t i = 0; i < named.size(); ++i) named[i].second = squares[i];
  if (each != nullptr) each->insert(each->end(), named.begin(), named.end());
}

std::vector<NamedGradient> owned_gradients(const std::vector<Unit*>& units, const GradStore& grads) {
  std::vector<NamedGradient> found;
  for (size_t u = 0; u < units.size(); ++u)
    for (const Unit::Segment& segment : units[u]->owned_segments())
      if (segment.spec->trainable) found.push_back({segment.spec->name, units[u]->slice(grads.shard(static_cast<int>(u)), segment)});
  std::stable_sort(found.begin(), found.end(), [](const NamedGradient& a, const NamedGradient& b) { return a.name < b.name; });
  return found;
}

}  // namespace trireme
