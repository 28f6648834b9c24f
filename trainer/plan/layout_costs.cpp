#include "trainer/plan/layout_costs.h"

#include "trainer/layout/resolve.h"
#include "trainer/plan/step_bound.h"

namespace trireme {
namespace {

const PartSeconds& block_of(const ModelSeconds& model, const Layout& layout) {
  return model.mean_block.at(static_cast<size_t>(layout.recompute.value()));
}

/// Seconds of block number `block`.
const PartSeconds& seconds_of(const ModelSeconds& model, int64_t block, const Layout& layout) {
  return model.seconds_of(model.parts[static_cast<size_t>(block) + 1], static_cast<Recompute>(layout.recompute.value()));
}

}  // namespace

const ModelSeconds& LayoutCosts::model_of(const Layout& layout) {
  const bool sharded = layout.zero >= 2;
  const auto config = [&] { return space_.config(layout, {space_.base().model.layers}); };
  const auto [at, added] =
      models_.try_emplace({layout.tensor, layout.sequence_parallel, layout.micro_batch, sharded ? layout.zero : 0, sharded ? layout.data : 1,
                           sharded ? layout.replicate : 1, sharded ? shared_uses(config(), stack_of(cluster_.software.stack)) : SharedUses{}});
  if (added) at->second = model_seconds(config(), cluster_, profiles_);
  return at->second;
}

std::vector<int64_t> LayoutCosts::split(const Layout& layout) {
  const ModelSeconds& model = model_of(layout);
  if (model.blocks_alike()) return split_by_time(space_, layout, model);
  std::vector<int64_t>& known = splits_[{&model, layout.recompute.value(), layout.stages(), empty_ends(space_, layout)}];
  if (known.empty()) known = split_by_time(space_, layout, model);
  return known;
}

double LayoutCosts::bound(const Layout& layout, const std::vector<PartSeconds>& stages, const std::vector<double>& transfers) const {
  const int64_t microbatches = space_.base().training.global_batch_size / layout.micro_batch / layout.data;
  if (is_staggered(stack_of(cluster_.software.stack), name_of(layout.schedule)))
    return staggered_step_lower_bound(layout, microbatches, stages) * kRounding;
  return step_seconds_lower_bound(layout, microbatches, stages, transfers) * kRounding;
}

double LayoutCosts::bound_before_sharding(const Layout& layout, const std::vector<int64_t>& split) {
  const ModelSeconds& model = model_of(layout);
  std::vector<PartSeconds> stages;
  for (const StageRange& range : stage_ranges(split)) {
    PartSeconds& stage = stages.emplace_back();
    if (model.blocks_alike())
      stage.add(block_of(model, layout), static_cast<double>(range.blocks));
    else
      for (int64_t b = range.first_block; b < range.first_block + range.blocks; ++b) stage.add(seconds_of(model, b, layout));
  }
  stages.front().add(model.embedding().seconds.front());
  stages.back().add(model.head().seconds.front());
  return bound(layout, stages, {});
}

const LeastMemory& LayoutCosts::least_memory(const Layout& layout) {
  const std::tuple key{layout.tensor, layout.sequence_parallel, layout.micro_batch, layout.recompute.value()};
  const auto at = least_.find(key);
  if (at != least_.end()) return at->second;
  return least_.emplace(key, LeastMemory(space_.config(layout, {space_.base().model.layers}), profiles_)).first->second;
}

}  // namespace trireme
