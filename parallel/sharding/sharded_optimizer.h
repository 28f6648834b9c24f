#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/update.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/param_store.h"

namespace trireme {

/// What UPDATE does with the owned shards.
struct OptimizerOptions {
  Optimizer kind = Optimizer::kAdamW;
  AdamW hyper;
  std::optional<double> average_decay = {};  ///< of the exponential moving average of the weights; none: there is no average
};

/// An optimizer on the owned shards. Its state is in the master dtype: traits_of(optimizer).states * P/S elements a rank, and P/S more for a moving average
/// of the weights. Weight decay only where the parameter asks for it. Nothing here communicates.
class ShardedOptimizer {
 public:
  ShardedOptimizer(Context& ctx, const ParamStore& params, const OptimizerOptions& options, const Precision& precision);

  /// Sets the average, where there is one, to the master weights as they are. Until then it is zero.
  void start_average(Context& ctx, const ParamStore& params);

  /// One unit's owned shard, then its average. `scalars`: kernels/ops/optimizer.h. A rejected step writes nothing.
  void update(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads, int unit);

  /// What update() hands to the rule: the slice of each parameter in the owned shard, and where in the model's matrices its elements are.
  std::vector<UpdateSlice> slices(const ParamStore& params, const GradStore& grads, int unit) const;

  /// What it keeps of a unit's owned shard, a checkpoint's part of each name.
  struct State {
    const char* name;
    Tensor shard;  ///< [shard_numel]
  };
  const std::vector<State>& state(int unit) const { return states_[static_cast<size_t>(unit)]; }

 private:
  OptimizerOptions options_;
  std::vector<std::vector<State>> states_;  ///< by unit; the average is the last
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
