#include "parallel/sharding/param_store.h"

#include "kernels/ops/elementwise.h"

namespace trireme {

ParamStore::ParamStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, const ZeroPolicy& policy, const Precision& precision)
    : units_(std::move(units)), states_(units_.size()), shard_(&shard), resident_(policy.parameters_resident), precision_(precision) {
  const bool apart = precision.master != precision.compute;
  for (size_t u = 0; u < units_.size(); ++u) {
    State& state = states_[u];
    const int64_t owned = units_[u]->shard_numel(shard.size());
    if (resident_) {
      state.full = Tensor::zeros(ctx, {owned * shard.size()}, precision.compute, MemoryCategory::kParameters);
      units_[u]->bind_values(state.full);
    }
    if (resident_ && !apart) {
      state.master = own_part(state.full);
    } else {
      state.master = Tensor::zeros(ctx, {owned}, precision.master, apart ? MemoryCategory::kOptimizer : MemoryCategory::kParameters);
    }
  }
}

Tensor ParamStore::own_part(const Tensor& full) const {
  const int64_t owned = full.numel() / shard_->size();
  return full.flat(shard_->rank() * owned, owned);
}

void ParamStore::unshard(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (state.fresh) return;
  if (!resident_) {
    TRIREME_CHECK(!state.full.defined(), "unit ", units_[static_cast<size_t>(unit)]->name(), " is gathered twice");
    state.full = Tensor::empty(ctx, {state.master.numel() * shard_->size()}, precision_.compute, MemoryCategory::kParameters);
    units_[static_cast<size_t>(unit)]->bind_values(state.full);
  }
  Tensor mine = state.master;
  if (precision_.master != precision_.compute) {
    mine = own_part(state.full);
    copy(ctx, state.master, mine);
  }
  state.gather = shard_->all_gather(ctx, mine, state.full);
  state.fresh = true;
}

void ParamStore::wait(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  TRIREME_CHECK(state.fresh, "unit ", units_[static_cast<size_t>(unit)]->name(), " is read before it is gathered");
  state.gather.wait(ctx);
}

void ParamStore::reshard(Context& ctx, int unit) {
  if (resident_) return;
  State& state = states_[static_cast<size_t>(unit)];
  state.gather.wait(ctx);
  state.full.reset();
  units_[static_cast<size_t>(unit)]->bind_values(state.full);
  state.fresh = false;
}

void ParamStore::mark_stale(int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  TRIREME_CHECK(!state.gather.pending() && (resident_ || !state.full.defined()), "parameters updated while a unit is gathered");
  state.fresh = false;
}

}  // namespace trireme
