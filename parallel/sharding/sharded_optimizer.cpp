#include "parallel/sharding/sharded_optimizer.h"

#include <cmath>

namespace trireme {

ShardedOptimizer::ShardedOptimizer(Context& ctx, const ParamStore& params, const AdamW& hyper, const Precision& precision) : hyper_(hyper) {
  for (size_t u = 0; u < params.units().size(); ++u) {
    const Shape shape{params.master(static_cast<int>(u)).numel()};
    exp_avg_.push_back(Tensor::zeros(ctx, shape, precision.master, MemoryCategory::kOptimizer));
    exp_avg_sq_.push_back(Tensor::zeros(ctx, shape, precision.master, MemoryCategory::kOptimizer));
  }
}

void ShardedOptimizer::step(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads) {
  AdamW no_decay = hyper_;
  no_decay.weight_decay = 0;
  const int shard = params.shard().rank();
  for (size_t u = 0; u < params.units().size(); ++u) {
    const int unit = static_cast<int>(u);
    for (const Unit::Segment& segment : params.units()[u]->owned_segments(shard, params.shard().size())) {
      adamw_step(ctx, segment.spec->decay ? hyper_ : no_decay, scalars, Unit::slice(params.master(unit), segment, shard),
                 Unit::slice(grads.shard(unit), segment, shard), Unit::slice(exp_avg_[u], segment, shard),
                 Unit::slice(exp_avg_sq_[u], segment, shard));
    }
  }
  params.mark_updated();
}

void add_gradient_squares(Context& ctx, const std::vector<Unit*>& units, const GradStore& grads, const Communicator& shard, const Tensor& sum) {
  for (size_t u = 0; u < units.size(); ++u) {
    for (const Unit::Segment& segment : units[u]->owned_segments(shard.rank(), shard.size())) {
      if (segment.spec->counted) sum_of_squares(ctx, Unit::slice(grads.shard(static_cast<int>(u)), segment, shard.rank()), sum);
    }
  }
}

std::vector<std::string> non_finite_gradients(Context& ctx, const std::vector<Unit*>& units, const GradStore& grads, const Communicator& shard) {
  std::vector<std::string> names;
  for (size_t u = 0; u < units.size(); ++u) {
    for (const Unit::Segment& segment : units[u]->owned_segments(shard.rank(), shard.size())) {
      const Tensor sum = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
      sum_of_squares(ctx, Unit::slice(grads.shard(static_cast<int>(u)), segment, shard.rank()), sum);
      if (ctx.device != Device::kMeta && !std::isfinite(*sum.data<double>())) names.push_back(segment.spec->name);
    }
  }
  return names;
}

}  // namespace trireme
