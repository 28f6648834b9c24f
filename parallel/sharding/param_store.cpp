#include "parallel/sharding/param_store.h"

namespace trireme {

ParamStore::ParamStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, const ZeroPolicy& policy, const Precision& precision)
    : units_(std::move(units)), states_(units_.size()), shard_(&shard), resident_(policy.parameters_resident), compute_(precision.compute) {
  TRIREME_CHECK(precision.master == precision.compute, "a master weight in another dtype than the parameter");
  for (size_t u = 0; u < units_.size(); ++u) {
    State& state = states_[u];
    const int64_t owned = units_[u]->shard_numel(shard.size());
    if (resident_) {
      state.full = Tensor::zeros(ctx, {owned * shard.size()}, compute_, MemoryCategory::kParameters);
      state.master = state.full.flat(shard.rank() * owned, owned);
      units_[u]->bind_values(state.full);
    } else {
      state.master = Tensor::zeros(ctx, {owned}, precision.master, MemoryCategory::kParameters);
    }
  }
}

void ParamStore::unshard(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (state.fresh) return;
  if (!resident_) {
    TRIREME_CHECK(!state.full.defined(), "unit ", units_[static_cast<size_t>(unit)]->name(), " is gathered twice");
    state.full = Tensor::empty(ctx, {state.master.numel() * shard_->size()}, compute_, MemoryCategory::kParameters);
    units_[static_cast<size_t>(unit)]->bind_values(state.full);
  }
  state.gather = shard_->all_gather(ctx, state.master, state.full);
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

void ParamStore::mark_updated() {
  for (State& state : states_) {
    TRIREME_CHECK(!state.gather.pending() && (resident_ || !state.full.defined()), "parameters updated while a unit is gathered");
    state.fresh = false;
  }
}

}  // namespace trireme
