#include "parallel/sharding/sharded_optimizer.h"

#include <algorithm>

#include "kernels/ops/elementwise.h"

namespace trireme {

ShardedOptimizer::ShardedOptimizer(Context& ctx, const ParamStore& params, const OptimizerOptions& options, const Precision& precision)
    : options_(options) {
  const OptimizerTraits& traits = traits_of(options.kind);
  for (size_t u = 0; u < params.units().size(); ++u) {
    const Shape shape{params.master(static_cast<int>(u)).numel()};
    std::vector<State>& states = states_.emplace_back();
    const auto add = [&](const char* name) { states.push_back({name, Tensor::zeros(ctx, shape, precision.master, MemoryCategory::kOptimizer)}); };
    for (int k = 0; k < traits.states; ++k) add(traits.state_names[static_cast<size_t>(k)]);
    if (options.average_decay) add(kAverageName);
  }
}

void ShardedOptimizer::start_average(Context& ctx, const ParamStore& params) {
  if (!options_.average_decay) return;
  for (size_t u = 0; u < states_.size(); ++u) copy(ctx, params.master(static_cast<int>(u)), states_[u].back().shard);
}

std::vector<UpdateSlice> ShardedOptimizer::slices(const ParamStore& params, const GradStore& grads, int unit) const {
  const Unit& of = *params.units()[static_cast<size_t>(unit)];
  std::vector<UpdateSlice> slices;
  for (const Unit::Segment& segment : of.owned_segments()) {
    const auto slice = [&](const Tensor& shard_tensor) { return of.slice(shard_tensor, segment); };
    UpdateSlice& added = slices.emplace_back(UpdateSlice{.w = slice(params.master(unit)), .g = slice(grads.shard(unit)), .state = {}});
    added.decay = segment.spec->decay;
    added.matrix = segment.matrix_range();
    for (size_t k = 0; k < static_cast<size_t>(traits_of(options_.kind).states); ++k) added.state[k] = slice(state(unit)[k].shard);
  }
  return slices;
}

void ShardedOptimizer::update(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads, int unit) {
  update_step(ctx, options_.kind, options_.hyper, scalars, slices(params, grads, unit));
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
      found.push_back({segment.spec->name, units[u]->slice(grads.shard(static_cast<int>(u)), segment)});
  std::stable_sort(found.begin(), found.end(), [](const NamedGradient& a, const NamedGradient& b) { return a.name < b.name; });
  return found;
}

}  // namespace trireme
