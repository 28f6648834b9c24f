#include "parallel/tensor/region.h"

#include <utility>

#include "kernels/core/operation_log.h"

namespace trireme {

void log_collective(const Context& ctx, const Communicator& group, const char* verb, DType dtype, int64_t bytes) {
  if (ctx.log != nullptr && group.size() > 1) ctx.log->collective(verb, dtype, bytes);
}

Tensor PendingRegionOp::wait(Context& ctx) {
  work.wait(ctx);
  source.reset();
  return std::move(result);
}

Region::Region(Communicator& tensor, bool sequence_parallel) : tensor_(&tensor), row_shards_(sequence_parallel ? tensor.size() : 1) {}

PendingRegionOp Region::reduce(Context& ctx, const Tensor& partial) const {
  log_collective(ctx, *tensor_, row_shards_ == 1 ? "all_reduce" : "reduce_scatter", partial.dtype(), partial.bytes());
  if (row_shards_ == 1) return {partial, partial, tensor_->all_reduce(ctx, partial, ReduceOp::kSum)};
  const Tensor mine = Tensor::empty(ctx, {local_rows(partial.dim(0)), partial.dim(1)}, partial.dtype(), MemoryCategory::kActivations);
  return {partial, mine, tensor_->reduce_scatter(ctx, partial, mine, ReduceOp::kSum)};
}

PendingRegionOp Region::gather(Context& ctx, const Tensor& rows) const {
  if (row_shards_ == 1) return {rows, rows, Work()};
  log_collective(ctx, *tensor_, "all_gather", rows.dtype(), rows.bytes() * row_shards_);
  const Tensor all = Tensor::empty(ctx, {rows.dim(0) * row_shards_, rows.dim(1)}, rows.dtype(), MemoryCategory::kActivations);
  return {rows, all, tensor_->all_gather(ctx, rows, all)};
}

PendingRegionOp Region::enter_forward(Context& ctx, const Tensor& x) const { return gather(ctx, x); }
PendingRegionOp Region::enter_backward(Context& ctx, const Tensor& dx) const { return reduce(ctx, dx); }
PendingRegionOp Region::exit_forward(Context& ctx, const Tensor& y) const { return reduce(ctx, y); }
PendingRegionOp Region::exit_backward(Context& ctx, const Tensor& dy) const { return gather(ctx, dy); }

}  // namespace trireme
