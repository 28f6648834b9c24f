#include "parallel/sharding/reducer.h"

#include <utility>

#include "kernels/ops/elementwise.h"

namespace trireme {
namespace {

void check(const Reduction& reduction) {
  TRIREME_CHECK(reduction.comm != nullptr && reduction.shard.defined(), "the reduction of unit ", reduction.unit,
                " is without communicator or shard");
  if (reduction.kind != Reduction::Kind::kScatter) {
    TRIREME_CHECK(!reduction.whole.defined() && !reduction.accumulate, "the shard of unit ", reduction.unit, " must be reduced in place");
    return;
  }
  TRIREME_CHECK(reduction.whole.defined() && reduction.whole.numel() == reduction.shard.numel() * reduction.comm->size(),
                "invalid sizes: reduce-scatter of unit ", reduction.unit, " into shards of ", reduction.shard.numel(), " elements over ",
                reduction.comm->size(), " ranks");
}

}  // namespace

void Reducer::start(Context& ctx, const Reduction& reduction) {
  check(reduction);
  TRIREME_CHECK(!in_flight_.contains(reduction.unit), "a reduction of unit ", reduction.unit, " starts before its previous one is finished");
  begin(ctx, reduction);
  in_flight_.emplace(reduction.unit, reduction);
}

void Reducer::finish(Context& ctx, int unit) {
  const auto started = in_flight_.extract(unit);
  TRIREME_CHECK(!started.empty(), "no reduction of unit ", unit, " was started");
  end(ctx, started.mapped());
}

double SumReducer::sent_bytes(Reduction::Kind kind, int /*unit*/, int64_t shard_numel, int ranks) const {
  const double others = ranks - 1.0;
  return static_cast<double>(shard_numel * size_of(wire_)) * (kind == Reduction::Kind::kScatter ? others : 2 * others / ranks);
}

Tensor SumReducer::on_wire(Context& ctx, const Reduction& reduction) const {
  const Tensor& gradient = reduction.kind == Reduction::Kind::kScatter ? reduction.whole : reduction.shard;
  const bool exact = reduction.kind == Reduction::Kind::kTied;
  // A group of one rank sends nothing, so rounding would only lose bits.
  if (exact || wire_ == gradient.dtype() || reduction.comm->size() == 1) return gradient;
  const Tensor narrow = Tensor::empty(ctx, gradient.shape(), wire_, MemoryCategory::kCommunication);
  copy(ctx, gradient, narrow);
  return narrow;
}

void SumReducer::begin(Context& ctx, const Reduction& reduction) {
  Arrival arrival;
  const Tensor in = on_wire(ctx, reduction);
  arrival.in_place = in.dtype() == reduction.shard.dtype() && !reduction.accumulate;
  if (reduction.kind == Reduction::Kind::kScatter) {
    arrival.sum = arrival.in_place ? reduction.shard : Tensor::empty(ctx, {reduction.shard.numel()}, in.dtype(), MemoryCategory::kGradients);
    arrival.work = reduction.comm->reduce_scatter(ctx, in, arrival.sum, ReduceOp::kSum);
  } else {
    arrival.sum = in;
    arrival.work = reduction.comm->all_reduce(ctx, in, ReduceOp::kSum);
  }
  arrivals_[reduction.unit] = std::move(arrival);
}

void SumReducer::end(Context& ctx, const Reduction& reduction) {
  Arrival& arrival = arrivals_[reduction.unit];
  arrival.work.wait(ctx);
  if (reduction.accumulate) {
    accumulate(ctx, arrival.sum, reduction.shard);
  } else if (!arrival.in_place) {
    copy(ctx, arrival.sum, reduction.shard);
  }
  arrival = {};
}

}  // namespace trireme
