#include "parallel/sharding/param_store.h"

#include <algorithm>

#include "kernels/ops/elementwise.h"

namespace trireme {

ParamStore::ParamStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, const ZeroPolicy& policy, const Precision& precision,
                       const Gathers& gathers)
    : units_(std::move(units)),
      states_(units_.size()),
      shard_(&shard),
      resident_(policy.parameters_resident),
      precision_(precision),
      encoding_(gathers.encoding),
      encodes_(encoding_.encoding != Encoding::kNone && shard.size() > 1),
      secondary_(gathers.secondary != nullptr && gathers.secondary->size() > 1 ? gathers.secondary : nullptr) {
  TRIREME_CHECK(secondary_ == nullptr || (!resident_ && shard.size() % secondary_->size() == 0), "a secondary group of ",
                secondary_ == nullptr ? 0 : secondary_->size(), " of ", shard.size(), " shards");
  const bool apart = precision.master != precision.compute || (encodes_ && resident_);
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
    if (encodes_)
      for (int s = 0; s < shard.size(); ++s) state.layout.push_back(message(static_cast<int>(u), s));
    if (secondary_ != nullptr)
      state.secondary = Tensor::zeros(ctx, {owned * (shard.size() / secondary_->size())}, precision.compute, MemoryCategory::kParameters);
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
  state.fresh = true;
  if (state.secondary_fresh) {
    state.gather = secondary_->all_gather(ctx, state.secondary, state.full);
    return;
  }
  if (encodes_) {
    state.messages = encoded(ctx, unit);
    state.gather = shard_->all_gather(ctx, own_part(state.messages), state.messages);
    return;
  }
  Tensor mine = state.master;
  if (precision_.master != precision_.compute) {
    mine = own_part(state.full);
    copy(ctx, state.master, mine);
  }
  state.gather = shard_->all_gather(ctx, mine, state.full);
}

void ParamStore::wait(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  TRIREME_CHECK(state.fresh, "unit ", units_[static_cast<size_t>(unit)]->name(), " is read before it is gathered");
  complete(ctx, unit);
}

/// All ranks of a group must keep their secondary parts from the same gather on, so a gather that this rank does not read is completed too.
void ParamStore::complete(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  state.gather.wait(ctx);
  if (state.messages.defined()) decode_messages(ctx, unit);
  if (secondary_ == nullptr || state.secondary_fresh) return;
  const int64_t count = state.secondary.numel();
  copy(ctx, state.full.flat(secondary_->rank() * count, count), state.secondary);
  state.secondary_fresh = true;
}

UnitMessage ParamStore::message(int unit, int shard) const {
  const Unit& of = *units_[static_cast<size_t>(unit)];
  const int64_t owned = of.shard_numel(shard_->size());
  return message_of(of, shard * owned, owned, precision_.master, [&](const ParamSpec& spec) {
    EncodingOptions encoding = encoding_;
    if (spec.dims == 1) encoding.encoding = Encoding::kNone;
    return encoding;
  });
}

/// Room for the messages of all shards, each as long as the longest, with that of this rank's masters in its place.
Tensor ParamStore::encoded(Context& ctx, int unit) {
  const State& state = states_[static_cast<size_t>(unit)];
  const Tensor& master = state.master;
  const int64_t longest = std::ranges::max_element(state.layout, {}, &UnitMessage::bytes)->bytes;
  const Tensor messages = Tensor::empty(ctx, {longest * shard_->size()}, DType::kU8, MemoryCategory::kCommunication);
  const Tensor mine = own_part(messages);
  fill(ctx, 0, mine);
  for (const auto& [segment, encoding, begin, bytes] : state.layout[static_cast<size_t>(shard_->rank())].parts)
    encode(ctx, encoding, {}, slice_of(master, segment, shard_->rank() * master.numel()), {}, mine.flat(begin, bytes), {});
  return messages;
}

/// Decoding adds to what is there, and padding is in no message: both need zeros.
void ParamStore::decode_messages(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  const int64_t owned = state.master.numel(), room = state.messages.numel() / shard_->size();
  Tensor wide;
  if (precision_.master != precision_.compute) wide = Tensor::empty(ctx, {owned}, precision_.master, MemoryCategory::kCommunication);
  for (int shard = 0; shard < shard_->size(); ++shard) {
    const Tensor part = state.full.flat(shard * owned, owned), out = wide.defined() ? wide : part;
    fill(ctx, 0, out);
    for (const auto& [segment, encoding, begin, bytes] : state.layout[static_cast<size_t>(shard)].parts)
      decode(ctx, encoding, {}, state.messages.flat(shard * room + begin, bytes), slice_of(out, segment, shard * owned));
    if (wide.defined()) copy(ctx, wide, part);
  }
  state.messages.reset();
}

/// A rank that computes nothing in a step has not waited for the gather, which the others need.
void ParamStore::reshard(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  complete(ctx, unit);
  if (resident_) return;
  state.full.reset();
  units_[static_cast<size_t>(unit)]->bind_values(state.full);
  state.fresh = false;
}

void ParamStore::mark_stale(int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  TRIREME_CHECK(!state.gather.pending() && (resident_ || !state.full.defined()), "parameters updated while a unit is gathered");
  state.fresh = false;
  state.secondary_fresh = false;
}

}  // namespace trireme
