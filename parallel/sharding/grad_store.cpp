#include "parallel/sharding/grad_store.h"

#include "kernels/ops/elementwise.h"

namespace trireme {

GradStore::GradStore(Context& ctx, std::vector<Unit*> units, const ZeroPolicy& policy, DType dtype, std::unique_ptr<Reducer> reducer)
    : units_(std::move(units)), states_(units_.size()), resident_(policy.gradients_resident), dtype_(dtype), reducer_(std::move(reducer)) {
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const auto& param : units_[u]->params())
      TRIREME_CHECK(param->trainable() == units_[u]->trainable(), param->specs.front().name, " is not trained like the rest of unit ",
                    units_[u]->name());
    if (!units_[u]->trainable()) continue;
    State& state = states_[u];
    const int64_t owned = units_[u]->shard_numel();
    if (resident_) {
      state.full = Tensor::zeros(ctx, {owned * units_[u]->group().shards()}, dtype_, MemoryCategory::kGradients);
      state.shard = state.full.flat(units_[u]->owned_begin(), owned);
      units_[u]->bind_grads(state.full);
    } else {
      state.shard = Tensor::zeros(ctx, {owned}, dtype_, MemoryCategory::kGradients);
    }
  }
}

void GradStore::begin_step(Context& ctx, int64_t step) {
  reducer_->begin_step(step);
  for (size_t u = 0; u < units_.size(); ++u) {
    if (!units_[u]->trainable()) continue;
    if (resident_) {
      empty(ctx, static_cast<int>(u));
    } else {
      fill(ctx, 0, states_[u].shard);
    }
  }
}

void GradStore::empty(Context& ctx, int unit) {
  const Unit& of = unit_of(unit);
  const Tensor& full = states_[static_cast<size_t>(unit)].full;
  for (const auto& param : of.params()) param->grad_is_empty = true;
  if (full.numel() > of.numel()) fill(ctx, 0, full.flat(of.numel(), full.numel() - of.numel()));  // padding of the shards
}

void GradStore::acquire(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (state.full.defined() || !unit_of(unit).trainable()) return;
  state.full = Tensor::empty(ctx, {state.shard.numel() * unit_of(unit).group().shards()}, dtype_, MemoryCategory::kGradients);
  unit_of(unit).bind_grads(state.full);
  empty(ctx, unit);
}

void GradStore::reduce(Context& ctx, int unit) {
  acquire(ctx, unit);  // this data rank may have no micro-batch where others have one
  const State& state = states_[static_cast<size_t>(unit)];
  for (const auto& param : unit_of(unit).params()) param->grad_to_add_to(ctx);  // zeros where nothing was added
  if (before_reduce_) before_reduce_(ctx, unit, state.full);
  // A resident gradient is reduced once, into its own part; otherwise the sum is added to those of earlier micro-batches.
  reducer_->start(ctx, {Reduction::Kind::kScatter, unit, unit_of(unit).group().shard, state.full, state.shard, !resident_});
  if (!resident_) unit_of(unit).bind_grads(Tensor());
}

void GradStore::reduce_replicas(Context& ctx, int unit) {
  reducer_->start(ctx, {Reduction::Kind::kReplicas, unit, unit_of(unit).group().replicate, {}, shard(unit)});
}

void GradStore::reduce_tied(Context& ctx, int unit, Communicator& embedding) {
  reducer_->start(ctx, {Reduction::Kind::kTied, unit, &embedding, {}, shard(unit)});
}

void GradStore::wait(Context& ctx, int unit) {
  reducer_->finish(ctx, unit);
  if (!resident_) states_[static_cast<size_t>(unit)].full.reset();
}

void GradStore::sum_partial(Context& ctx, Communicator& tensor, Communicator& kv) {
  sum_partial(ctx, Partial::kTensor, tensor);
  sum_partial(ctx, Partial::kKv, kv);
}

void GradStore::sum_partial(Context& ctx, Partial over, Communicator& comm) {
  std::vector<Tensor> parts;
  for (size_t u = 0; u < units_.size(); ++u)
    for (const Unit::Segment& segment : units_[u]->owned_segments())
      if (segment.spec->partial_over == over && segment.spec->trainable) parts.push_back(units_[u]->slice(states_[u].shard, segment));
  sum_packed(ctx, comm, parts, dtype_);
}

void sum_packed(Context& ctx, Communicator& comm, const std::vector<Tensor>& parts, DType dtype) {
  int64_t total = 0;
  for (const Tensor& part : parts) total += part.numel();
  if (total == 0 || comm.size() == 1) return;
  const Tensor packed = Tensor::empty(ctx, {total}, dtype, MemoryCategory::kCommunication);
  int64_t offset = 0;
  for (const Tensor& part : parts) {
    copy(ctx, part, packed.flat(offset, part.numel()));
    offset += part.numel();
  }
  comm.all_reduce(ctx, packed, ReduceOp::kSum).wait(ctx);
  offset = 0;
  for (const Tensor& part : parts) {
    copy(ctx, packed.flat(offset, part.numel()), part);
    offset += part.numel();
  }
}

}  // namespace trireme
