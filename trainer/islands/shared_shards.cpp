#include "trainer/islands/shared_shards.h"

#include "kernels/ops/elementwise.h"

namespace trireme {

SharedShards::SharedShards(Context& ctx, const Stages& stages, DType master) : stages_(stages) {
  for (size_t s = 0; s < stages.size(); ++s) {
    std::vector<Tensor>& units = shards_.emplace_back();
    for (size_t u = 0; u < stages[s]->params().units().size(); ++u)
      units.push_back(stages[s]->params().units()[u]->trainable() ? Tensor::zeros(ctx, weights(s, u).shape(), master, MemoryCategory::kOptimizer)
                                                                  : Tensor());
  }
}

void SharedShards::set(Context& ctx) {
  for (size_t s = 0; s < shards_.size(); ++s)
    for (size_t u = 0; u < shards_[s].size(); ++u)
      if (of(s, u).defined()) copy(ctx, weights(s, u), of(s, u));
}

void SharedShards::take(Context& ctx) {
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (size_t u = 0; u < shards_[s].size(); ++u) {
      if (!of(s, u).defined()) continue;
      copy(ctx, of(s, u), weights(s, u));
      stages_[s]->params().mark_stale(static_cast<int>(u));
    }
  }
}

void SharedShards::exchange(Context& ctx) {
  for (size_t s = 0; s < shards_.size(); ++s) {
    for (size_t u = 0; u < shards_[s].size(); ++u) {
      if (!of(s, u).defined()) continue;
      const Tensor own = weights(s, u), kept = Tensor::empty(ctx, own.shape(), own.dtype(), MemoryCategory::kWorkspace);
      copy(ctx, own, kept);
      copy(ctx, of(s, u), own);
      copy(ctx, kept, of(s, u));
      stages_[s]->params().mark_stale(static_cast<int>(u));
    }
  }
}

}  // namespace trireme
