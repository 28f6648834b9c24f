#pragma once
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/muon.h"
#include "kernels/ops/update.h"
#include "parallel/sharding/grad_store.h"
#include "parallel/sharding/matrix_exchange.h"
#include "parallel/sharding/param_store.h"

namespace trireme {

/// Options of UPDATE.
struct OptimizerOptions {
  Optimizer kind = Optimizer::kAdamW;
  AdamW hyper;
  double momentum = 0.95;  ///< Muon
  MuonScale scale = MuonScale::kRms;
  std::optional<double> average_decay = {};  ///< decay of the exponential moving average of the weights; empty: no average
};

/// The dtype in which an optimizer of matrices exchanges and transforms them: that of the layers if it is bf16, else that of the master weights.
inline DType exchanged_dtype(const Precision& precision) { return precision.compute == DType::kBF16 ? DType::kBF16 : precision.master; }

/// An optimizer on the owned shards. Its state, in the master dtype, per rank: for the P parameters of each rule traits_of(rule).states * P/S elements,
/// and P/S more for a moving average of the weights; frozen parameters have no state. Weight decay applies only to parameters with ParamSpec::decay.
/// Only orthogonalize() communicates.
class ShardedOptimizer {
 public:
  /// `tensor`: the ranks that split the matrices; outlives this.
  ShardedOptimizer(Context& ctx, const ParamStore& params, const OptimizerOptions& options, const Precision& precision, Communicator& tensor);

  /// Sets the average, if there is one, to the current master weights. Until then it is zero.
  void start_average(Context& ctx, const ParamStore& params);

  /// With an optimizer of matrices, before update() of the stage's units and on all ranks of the stage: the state of all its matrices and their updates.
  /// Wire and memory: those of MatrixExchange in exchanged_dtype(). P/S elements of updates remain until update() has applied the last of them.
  void orthogonalize(Context& ctx, const Tensor& scalars, const ParamStore& params, const GradStore& grads);

  /// Updates one unit's owned shard, then its average. `scalars`: kernels/ops/optimizer.h. A rejected step writes nothing.
  void update(Context& ctx, const Tensor& scalars, ParamStore& params, const GradStore& grads, int unit);

  /// The arguments of `rule` for the parameters that it updates: the slice of each in the owned shard, and the position of its elements in the model's
  /// matrices.
  std::vector<UpdateSlice> slices(const ParamStore& params, const GradStore& grads, int unit, Optimizer rule) const;

  /// State of a unit's owned shard; `name` is its name in checkpoints. It has the elements of the parameters that have such a state, in the order of the
  /// shard, and the shard's padding: [shard_numel] if all have it.
  struct State {
    const char* name;
    Tensor shard;
  };
  const std::vector<State>& state(int unit) const { return states_[static_cast<size_t>(unit)]; }
  /// The state of a part of an owned segment: views of its `count` elements, those of the parameter's rule in its order, then the average. None of a
  /// frozen parameter.
  std::vector<State> state_of(int unit, const Unit::Segment& part) const;

 private:
  /// An owned segment and its state, which has the segment's elements.
  struct OwnedSegment {
    Unit::Segment segment;
    std::vector<State> state;
  };
  bool has_state(const char* name, const ParamSpec& spec) const;
  void add_segments(const Unit& unit, const std::vector<State>& states);
  std::vector<UpdateSlice> matrix_slices(Context& ctx, const ParamStore& params, int unit) const;

  OptimizerOptions options_;
  std::vector<std::vector<State>> states_;        ///< by unit; the average is the last
  std::vector<std::vector<OwnedSegment>> owned_;  ///< by unit
  std::optional<MatrixExchange> exchange_;        ///< with an optimizer of matrices
  DType exchanged_;
  Tensor matrix_updates_;        ///< for the pieces of exchange_, until all of them have been applied
  size_t updates_to_apply_ = 0;  ///< number of these pieces
};

/// The segments of a unit that this rank owns and counts, without padding: over all ranks with replicate coordinate 0, every element of every
/// parameter is in exactly one of them; tied copies are in none.
std::vector<Unit::Segment> counted_segments(const Unit& unit);
/// The segments of elements [begin, end) of a unit's flat buffer that this tensor rank counts, without padding.
std::vector<Unit::Segment> counted_segments(const Unit& unit, int64_t begin, int64_t end);

/// sum[0] (f64) += sum of squares of this rank's owned gradients of primary copies. Over all ranks with replicate coordinate 0, every element of
/// every trainable parameter is added exactly once; padding and tied copies are never added. The sum of each parameter, by its name, is appended to
/// `each`, if given; only on CPUs.
using NamedSquares = std::vector<std::pair<std::string, double>>;
void add_gradient_squares(Context& ctx, const std::vector<Unit*>& units, const GradStore& grads, const Tensor& sum, NamedSquares* each = nullptr);

/// The owned gradients of trainable parameters, in the order of the parameters' names.
struct NamedGradient {
  std::string name;
  Tensor gradient;
};
std::vector<NamedGradient> owned_gradients(const std::vector<Unit*>& units, const GradStore& grads);

}  // namespace trireme
