#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/update.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/param_store.h"

namespace trireme {

/// Options of UPDATE.
struct OptimizerOptions {
  Optimizer kind = Optimizer::kAdamW;
  AdamW hyper;
  std::optional<double> average_decay = {};  ///< decay of the exponential moving average of the weights; empty: no average
};

/// An optimizer on the owned shards. Its state, in the master dtype: traits_of(optimizer).states * P/S elements per rank, and P/S more for a moving
/// average of the weights. Weight decay applies only to parameters with ParamSpec::decay. No communication.
class ShardedOptimizer {
 public:
  ShardedOptimizer(Context& ctx, const ParamStore& params, const OptimizerOptions& options, const Precision& precision);

  /// Sets the average, if there is one, to the current master weights. Until then it is zero.
  void start_average(Context& ctx, const ParamStore& params);

  /// Updates one unit's owned shard, then its average. `scalars`: kernels/ops/optimizer.h. A rejected step writes nothing.
  void update(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads, int unit);

  /// The arguments of the update rule: the slice of each parameter in the owned shard, and the position of its elements in the model's matrices.
  std::vector<UpdateSlice> slices(const ParamStore& params, const GradStore& grads, int unit) const;

  /// Optimizer state of a unit's owned shard; `name` is its name in checkpoints.
  struct State {
    const char* name;
    Tensor shard;  ///< [shard_numel]
  };
  const std::vector<State>& state(int unit) const { return states_[static_cast<size_t>(unit)]; }

 private:
  OptimizerOptions options_;
  std::vector<std::vector<State>> states_;  ///< by unit; the average is the last
};

/// The segments of a unit that this rank owns and counts, without padding: over all ranks with replicate coordinate 0, every element of every
/// parameter is in exactly one of them; tied copies are in none.
std::vector<Unit::Segment> counted_segments(const Unit& unit);
/// The segments of elements [begin, end) of a unit's flat buffer that this tensor rank counts, without padding.
std::vector<Unit::Segment> counted_segments(const Unit& unit, int64_t begin, int64_t end);

/// sum[0] (f64) += sum of squares of this rank's owned gradients of primary copies. Over all ranks with replicate coordinate 0, every element of
/// every parameter is added exactly once; padding and tied copies are never added. The sum of each parameter, by its name, is appended to
/// `each`, if given; only on CPUs.
using NamedSquares = std::vector<std::pair<std::string, double>>;
void add_gradient_squares(Context& ctx, const std::vector<Unit*>& units, const GradStore& grads, const Tensor& sum, NamedSquares* each = nullptr);

/// The owned gradients, in the order of the parameters' names.
struct NamedGradient {
  std::string name;
  Tensor gradient;
};
std::vector<NamedGradient> owned_gradients(const std::vector<Unit*>& units, const GradStore& grads);

}  // namespace trireme
