#pragma once
// Local updates (local SGD, DiLoCo): islands take training.local.steps steps alone, a round, and then synchronise by an outer step on the mean of
// their weights. Between two outer steps no rank exchanges anything with another island.
// Sources: Stich 2018, arXiv:1805.09767; Douillard et al. 2023, arXiv:2311.08105.
#include <memory>
#include <vector>

#include "kernels/ops/outer_step.h"
#include "parallel/mesh.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/config/config.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// Name in checkpoints of the momentum of the outer step, which has the shape and dtype of the weights.
constexpr const char* kOuterMomentumName = "outer_momentum";

/// Steps 1, 2, ... of a run with rounds of `round` steps; a round ends after the last step of the run, too. Without local updates `round` is 1.
struct Rounds {
  int64_t round = 1;
  int64_t last = 0;  ///< the run's last step; 0: not known, no round is shorter

  /// True if a round ends after `step`: all islands then have the same weights.
  bool ends_after(int64_t step) const { return step % round == 0 || step == last; }
  /// The end of the round that contains `step`, and of the one before.
  int64_t end_of(int64_t step) const;
  int64_t end_before(int64_t step) const { return (step - 1) / round * round; }
  /// True if a multiple of `every` lies in the round that ends after `step`. False if `every` is 0, or no round ends after `step`.
  bool is_due(int64_t step, int64_t every) const;
};
/// `last`: Rounds::last.
Rounds rounds_of(const TrainingConfig& training, int64_t last);

/// Figures of an outer step, over all ranks.
struct OuterResult {
  double gradient_norm = 0;  ///< |g|, of the outer gradient: the weights at the start of the round minus the mean of the islands' weights at its end
  double sent_bytes = 0;     ///< by this rank
  double drift = 0;          ///< root mean square over the islands of |weights - mean| / |weights after the outer step|
};

/// One rank's part of the outer steps, on the shards that it owns. Memory: two tensors of the owned shards in the dtype of the master weights (the
/// weights at the start of the round, and the momentum), and during an outer step a copy of the largest unit's shard.
/// Wire per outer step: 2(n-1)/n of the owned shards in that dtype, over the n islands.
class LocalUpdates {
 public:
  LocalUpdates(Context& ctx, Mesh& mesh, const std::vector<std::unique_ptr<TransformerStage>>& stages, const LocalConfig& config, DType master);

  /// A round starts from the current weights.
  void start_round(Context& ctx);
  /// start_round() with zero momentum.
  void start_run(Context& ctx);
  /// Queues the outer step. The figures, which figures() reads, are summed over the world. `counts`: whether this rank counts its shards.
  void synchronise(Context& ctx, bool counts);

  /// Three [1] f64: squares of outer gradient, drift and weights, of the last outer step, each summed over the islands.
  const std::vector<Tensor>& figures() const { return figures_; }
  OuterResult result(const std::vector<double>& figures) const;
  Tensor momentum(size_t stage, size_t unit) const { return shards_[stage][unit].momentum; }  ///< [shard_numel]
  /// Bytes that this rank sends in an outer step.
  double sent_bytes() const;

 private:
  struct Shards {
    Tensor theta;  ///< the weights at the start of the round
    Tensor momentum;
  };

  Mesh& mesh_;
  const std::vector<std::unique_ptr<TransformerStage>>& stages_;
  OuterStep step_;
  std::vector<std::vector<Shards>> shards_;  ///< by stage and unit
  Tensor sums_;                              ///< [3] f64
  std::vector<Tensor> figures_;              ///< views of sums_
};

}  // namespace trireme
