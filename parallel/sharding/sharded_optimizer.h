#pragma once
#include <string>
#include <vector>

#include "kernels/ops/update.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/param_store.h"

namespace trireme {

/// An optimizer on the owned shards. Its state is in the master dtype: traits_of(optimizer).states * P/S elements a rank. Weight decay only where the parameter
/// asks for it.
class ShardedOptimizer {
 public:
  ShardedOptimizer(Context& ctx, const ParamStore& params, Optimizer optimizer, const AdamW& hyper, const Precision& precision);

  /// One unit's owned shard. `scalars`: kernels/ops/optimizer.h. A rejected step writes nothing.
  void update(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads, int unit);

  /// What it keeps of a unit's owned shard, a checkpoint's part of each name.
  struct State {
    const char* name;
    Tensor shard;  ///< [shard_numel]
  };
  const std::vector<State>& state(int unit) const { return states_[static_cast<size_t>(unit)]; }

 private:
  Optimizer optimizer_;
  AdamW hyper_;
  std::vector<std::vector<State>> states_;  ///< by unit
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
