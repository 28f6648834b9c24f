#include "trainer/loop/owned_boxes.h"

#include <utility>

namespace trireme {
namespace {

void add_owned_boxes(const TransformerStage& stage, size_t s, const UpdateStrategy& updates, std::vector<OwnedBox>& boxes) {
  const ParamStore& params = stage.params();
  for (size_t u = 0; u < params.units().size(); ++u) {
    const int unit = static_cast<int>(u);
    for (const Unit::Segment& segment : params.units()[u]->owned_segments()) {
      for (const BoxRange& range : boxes_of(*segment.spec, segment.param_begin, segment.param_begin + segment.count)) {
        const Unit::Segment part{segment.spec, segment.flat_begin + range.offset - segment.param_begin, range.offset, range.box.numel()};
        const auto slice = [&](const Tensor& shard) { return shard.defined() ? params.units()[u]->slice(shard, part) : Tensor(); };
        OwnedBox box{segment.spec, range.box, slice(params.master(unit)), {}, {}, {}};
        if (const ShardedOptimizer* const optimizer = stage.optimizer(); optimizer != nullptr) {
          box.state = optimizer->state_of(unit, part);
          if (const Tensor momentum = slice(updates.outer_momentum(s, u)); momentum.defined()) box.state.push_back({kOuterMomentumName, momentum});
          box.shared = slice(updates.shared_weights(s, u));
          box.gradient = slice(stage.grads().shard(unit));
        }
        boxes.push_back(std::move(box));
      }
    }
  }
}

}  // namespace

std::vector<ShardedOptimizer::State> OwnedBox::kept() const {
  std::vector<ShardedOptimizer::State> all{{"weight", shared.defined() ? shared : weight}};
  if (shared.defined()) all.push_back({kIslandWeightName, weight});
  all.insert(all.end(), state.begin(), state.end());
  return all;
}

std::vector<OwnedBox> owned_boxes(const Stages& stages, const UpdateStrategy& updates) {
  std::vector<OwnedBox> boxes;
  for (size_t s = 0; s < stages.size(); ++s) add_owned_boxes(*stages[s], s, updates, boxes);
  return boxes;
}

std::vector<ReducerBox> reducer_boxes(const Stages& stages) {
  std::vector<ReducerBox> boxes;
  for (const std::unique_ptr<TransformerStage>& stage : stages) {
    const std::vector<Unit*>& units = stage->params().units();
    for (size_t u = 0; u < units.size(); ++u) {
      for (const Reducer::State& state : stage->grads().reducer().state(static_cast<int>(u))) {
        if (state.spec != nullptr) continue;
        for (const Unit::Segment& segment : units[u]->segments(state.begin, state.begin + state.tensor.numel())) {
          const int64_t first = segment.flat_begin - state.begin - segment.param_begin;  // of the parameter, in the state
          for (const BoxRange& range : boxes_of(*segment.spec, segment.param_begin, segment.param_begin + segment.count))
            boxes.push_back({segment.spec, range.box, state.name, state.tensor.flat(first + range.offset, range.box.numel()), state.worker});
        }
      }
    }
  }
  return boxes;
}

std::vector<ReducerMatrix> reducer_matrices(const Stages& stages) {
  std::vector<ReducerMatrix> matrices;
  for (const std::unique_ptr<TransformerStage>& stage : stages)
    for (size_t u = 0; u < stage->params().units().size(); ++u)
      for (const Reducer::State& state : stage->grads().reducer().state(static_cast<int>(u)))
        if (state.spec != nullptr) matrices.push_back({state.spec, state.name, state.tensor});
  return matrices;
}

}  // namespace trireme
