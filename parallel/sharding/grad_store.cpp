#include "parallel/sharding/grad_store.h"

#include "kernels/ops/elementwise.h"

namespace trireme {

GradStore::GradStore(Context& ctx, std::vector<Unit*> units, Communicator& shard, Communicator& replicate, const ZeroPolicy& policy,
                     const Precision& precision)
    : units_(std::move(units)),
      states_(units_.size()),
      shard_(&shard),
      replicate_(&replicate),
      resident_(policy.gradients_resident),
      dtype_(precision.gradient),
      wire_(precision.reduce) {
  for (size_t u = 0; u < units_.size(); ++u) {
    State& state = states_[u];
    const int64_t owned = units_[u]->shard_numel(shard.size());
    if (resident_) {
      state.full = Tensor::zeros(ctx, {owned * shard.size()}, dtype_, MemoryCategory::kGradients);
      state.shard = state.full.flat(shard.rank() * owned, owned);
      units_[u]->bind_grads(state.full);
    } else {
      state.shard = Tensor::zeros(ctx, {owned}, dtype_, MemoryCategory::kGradients);
    }
  }
}

void GradStore::begin_step(Context& ctx) {
  for (State& state : states_) fill(ctx, 0, resident_ ? state.full : state.shard);
}

void GradStore::acquire(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  if (state.full.defined()) return;
  state.full = Tensor::zeros(ctx, {state.shard.numel() * shard_->size()}, dtype_, MemoryCategory::kGradients);
  units_[static_cast<size_t>(unit)]->bind_grads(state.full);
}

Tensor GradStore::on_wire(Context& ctx, const Communicator& comm, const Tensor& gradient) const {
  if (wire_ == dtype_ || comm.size() == 1) return gradient;  // rounding for a wire that nothing crosses would only lose bits
  const Tensor narrow = Tensor::empty(ctx, gradient.shape(), wire_, MemoryCategory::kCommunication);
  copy(ctx, gradient, narrow);
  return narrow;
}

void GradStore::reduce(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  const Tensor in = on_wire(ctx, *shard_, state.full);
  const bool in_place = resident_ && in.dtype() == dtype_;
  if (!in_place) state.scattered = Tensor::empty(ctx, {state.shard.numel()}, in.dtype(), MemoryCategory::kGradients);
  state.reduction = shard_->reduce_scatter(ctx, in, in_place ? state.shard : state.scattered, ReduceOp::kSum);
  if (!resident_) units_[static_cast<size_t>(unit)]->bind_grads(Tensor());
}

void GradStore::reduce_replicas(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  state.summed = on_wire(ctx, *replicate_, state.shard);
  state.reduction = replicate_->all_reduce(ctx, state.summed, ReduceOp::kSum);
}

void GradStore::reduce_tied(Context& ctx, int unit, Communicator& embedding) {
  State& state = states_[static_cast<size_t>(unit)];
  state.reduction = embedding.all_reduce(ctx, state.shard, ReduceOp::kSum);
}

void GradStore::wait(Context& ctx, int unit) {
  State& state = states_[static_cast<size_t>(unit)];
  state.reduction.wait(ctx);
  if (state.scattered.defined()) {
    if (resident_) {
      copy(ctx, state.scattered, state.shard);
    } else {
      accumulate(ctx, state.scattered, state.shard);
      state.full.reset();
    }
    state.scattered.reset();
  }
  if (state.summed.defined() && state.summed.dtype() != dtype_) copy(ctx, state.summed, state.shard);
  state.summed.reset();
}

void GradStore::sum_partial(Context& ctx, Communicator& tensor, Communicator& kv) {
  sum_partial(ctx, Partial::kTensor, tensor);
  sum_partial(ctx, Partial::kKv, kv);
}

void GradStore::sum_partial(Context& ctx, Partial over, Communicator& comm) {
  std::vector<Tensor> parts;
  int64_t total = 0;
  for (size_t u = 0; u < units_.size(); ++u) {
    for (const Unit::Segment& segment : units_[u]->owned_segments(shard_->rank(), shard_->size())) {
      if (segment.spec->partial_over != over) continue;
      parts.push_back(Unit::slice(states_[u].shard, segment, shard_->rank()));
      total += segment.count;
    }
  }
  if (total == 0 || comm.size() == 1) return;
  const Tensor packed = Tensor::empty(ctx, {total}, dtype_, MemoryCategory::kCommunication);
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
