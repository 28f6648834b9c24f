#pragma once
#include <string>
#include <vector>

#include "kernels/ops/optimizer.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/param_store.h"

namespace trireme {

/// AdamW on the owned shards: both moments in the master dtype, 2 * P/S elements a rank. Weight decay only where the parameter asks for it.
class ShardedOptimizer {
 public:
  ShardedOptimizer(Context& ctx, const ParamStore& params, const AdamW& hyper, const Precision& precision);

  /// One unit's owned shard. `scalars`: kernels/ops/optimizer.h. A rejected step writes nothing.
  void update(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads, int unit);

  const AdamW& hyper() const { return hyper_; }
  Tensor exp_avg(int unit) const { return exp_avg_[static_cast<size_t>(unit)]; }        ///< m, [shard_numel]
  Tensor exp_avg_sq(int unit) const { return exp_avg_sq_[static_cast<size_t>(unit)]; }  ///< v, [shard_numel]

 private:
  AdamW hyper_;
  std::vector<Tensor> exp_avg_, exp_avg_sq_;
};

/// sum[0] (f64) += sum of squares of the owned gradients that this rank counts: over all ranks with replicate coordinate 0, every element of every
/// parameter is added exactly once, padding and tied copies never.
void add_gradient_squares(Context& ctx, const std::vector<Unit*>& units, const GradStore& grads, const Communicator& shard, const Tensor& sum);

/// The owned gradients, in the order of the parameters' names.
struct NamedGradient {
  std::string name;
  Tensor gradient;
};
std::vector<NamedGradient> owned_gradients(const std::vector<Unit*>& units, const GradStore& grads, const Communicator& shard);

}  // namespace trireme
