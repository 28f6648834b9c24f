#include "parallel/tensor/region.h"

namespace trireme {

Region::Region(Communicator& tensor, bool sequence_parallel) : tensor_(&tensor), row_shards_(sequence_parallel ? tensor.size() : 1) {}

Tensor Region::reduce(Context& ctx, const Tensor& partial) const {
  if (row_shards_ == 1) {
    tensor_->all_reduce(ctx, partial, ReduceOp::kSum).wait(ctx);
    return partial;
  }
  const Tensor mine = Tensor::empty(ctx, {local_rows(partial.dim(0)), partial.dim(1)}, partial.dtype(), MemoryCategory::kActivations);
  tensor_->reduce_scatter(ctx, partial, mine, ReduceOp::kSum).wait(ctx);
  return mine;
}

Tensor Region::gather(Context& ctx, const Tensor& rows) const {
  if (row_shards_ == 1) return rows;
  const Tensor all = Tensor::empty(ctx, {rows.dim(0) * row_shards_, rows.dim(1)}, rows.dtype(), MemoryCategory::kActivations);
  tensor_->all_gather(ctx, rows, all).wait(ctx);
  return all;
}

Tensor Region::enter_forward(Context& ctx, const Tensor& x) const { return gather(ctx, x); }
Tensor Region::enter_backward(Context& ctx, const Tensor& dx) const { return reduce(ctx, dx); }
Tensor Region::exit_forward(Context& ctx, const Tensor& y) const { return reduce(ctx, y); }
Tensor Region::exit_backward(Context& ctx, const Tensor& dy) const { return gather(ctx, dy); }

}  // namespace trireme
