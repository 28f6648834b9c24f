#include "parallel/sharding/param_store.h"

#include <algorithm>

#include "kernels/ops/elementwise.h"

namespace trireme {

ParamStore::ParamStore(Context& ctx, std::vector<Unit*> units, const ZeroPolicy& policy, const Precision& precision, const EncodingOptions& encoding)
    : units_(std::move(units)), states_(units_.size()), resident_(policy.parameters_resident), precision_(precision), encoding_(encoding) {
  for (size_t u = 0; u < units_.size(); ++u) {
    State& state = states_[u];
    const auto unit = static_cast<int>(u);
    const ShardGroup& group = units_[u]->group();
    TRIREME_CHECK(!has_secondary(group) || (!resident_ && group.shards() % group.secondary->size() == 0), "a secondary group of ",
                  group.secondary == nullptr ? 0 : group.secondary->size(), " of ", group.shards(), " shards");
    const DType master = master_dtype(*units_[u]);
    const bool apart = master != precision.compute || (encodes(group) && resident_);
    const int64_t owned = units_[u]->shard_numel();
    if (resident_) {
      state.full = Tensor::zeros(ctx, {owned * group.shards()}, precision.compute, MemoryCategory::kParameters);
      units_[u]->bind_values(state.full);
    }
    if (resident_ && !apart) {
      state.master = own_part(unit, state.full);
    } else {
      state.master = Tensor::zeros(ctx, {owned}, master, apart ? MemoryCategory::kOptimizer : MemoryCategory::kParameters);
    }
    for (int s = 0; encodes(group) && s < group.shards(); ++s) state.layout.push_back(message(unit, s));
    if (has_secondary(group))
      state.secondary = Tensor::zeros(ctx, {owned * (group.shards() / group.secondary->size())}, precision.compute, MemoryCategory::kParameters);
  }
}

/// The part of the owned shard in a tensor with as much for each shard.
Tensor ParamStore::own_part(int unit, const Tensor& full) const {
  const ShardGroup& group = unit_of(unit).group();
  const int64_t owned = full.numel() / group.shards();
  return full.flat(group.own_shard() * owned, owned);
}

void ParamStore::unshard(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (state.fresh) return;
  const ShardGroup& group = unit_of(unit).group();
  if (!resident_) {
    TRIREME_CHECK(!state.full.defined(), "unit ", unit_of(unit).name(), " is gathered twice");
    state.full = Tensor::empty(ctx, {state.master.numel() * group.shards()}, precision_.compute, MemoryCategory::kParameters);
    unit_of(unit).bind_values(state.full);
  }
  state.fresh = true;
  if (state.secondary_fresh) {
    state.gather = group.secondary->all_gather(ctx, state.secondary, state.full);
    return;
  }
  if (encodes(group)) {
    state.messages = encoded(ctx, unit);
    state.gather = group.shard->all_gather(ctx, own_part(unit, state.messages), state.messages);
    return;
  }
  Tensor mine = state.master;
  if (state.master.dtype() != precision_.compute) {
    mine = own_part(unit, state.full);
    copy(ctx, state.master, mine);
  }
  state.gather = group.shard->all_gather(ctx, mine, state.full);
}

void ParamStore::wait(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  TRIREME_CHECK(state.fresh, "unit ", unit_of(unit).name(), " is read before it is gathered");
  complete(ctx, unit);
}

/// All ranks of a group must keep their secondary parts from the same gather on, so a gather that this rank does not read is completed too.
void ParamStore::complete(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  state.gather.wait(ctx);
  if (state.messages.defined()) decode_messages(ctx, unit);
  const ShardGroup& group = unit_of(unit).group();
  if (!has_secondary(group) || state.secondary_fresh) return;
  const int64_t count = state.secondary.numel();
  copy(ctx, state.full.flat(group.secondary->rank() * count, count), state.secondary);
  state.secondary_fresh = true;
}

UnitMessage ParamStore::message(int unit, int shard) const {
  const Unit& of = unit_of(unit);
  const int64_t owned = of.shard_numel();
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
  const Unit& of = unit_of(unit);
  const Tensor messages = Tensor::empty(ctx, {longest * of.group().shards()}, DType::kU8, MemoryCategory::kCommunication);
  const Tensor mine = own_part(unit, messages);
  fill(ctx, 0, mine);
  for (const auto& [segment, encoding, begin, bytes] : state.layout[static_cast<size_t>(of.group().own_shard())].parts)
    encode(ctx, encoding, {}, slice_of(master, segment, of.owned_begin()), {}, mine.flat(begin, bytes), {});
  return messages;
}

/// Decoding adds to what is there, and padding is in no message: both need zeros.
void ParamStore::decode_messages(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  const int shards = unit_of(unit).group().shards();
  const int64_t owned = state.master.numel(), room = state.messages.numel() / shards;
  Tensor wide;
  if (precision_.master != precision_.compute) wide = Tensor::empty(ctx, {owned}, precision_.master, MemoryCategory::kCommunication);
  for (int shard = 0; shard < shards; ++shard) {
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
  unit_of(unit).bind_values(state.full);
  state.fresh = false;
}

void ParamStore::mark_stale(int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  TRIREME_CHECK(!state.gather.pending() && (resident_ || !state.full.defined()), "parameters updated while a unit is gathered");
  state.fresh = false;
  state.secondary_fresh = false;
}

}  // namespace trireme
