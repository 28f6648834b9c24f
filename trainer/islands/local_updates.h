#pragma once
// Local updates (local SGD, DiLoCo): islands take training.local.steps steps alone, a round, and then synchronise by an outer step on the mean of
// their weights. With fragments (streaming DiLoCo) the layers synchronise in turn, one fragment after each part of the round, and its sum may be in
// flight for some steps. Beside outer steps no rank exchanges anything with another island.
// Sources: Stich 2018, arXiv:1805.09767; Douillard et al. 2023, arXiv:2311.08105; Douillard et al. 2025, arXiv:2501.18512.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/ops/outer_step.h"
#include "parallel/mesh.h"
#include "parallel/sharding/sharded_optimizer.h"
#include "trainer/config/config.h"
#include "trainer/islands/shared_shards.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/transformer_stage.h"

namespace trireme {

/// Name in checkpoints of the momentum of the outer step, which has the shape and dtype of the weights.
constexpr const char* kOuterMomentumName = "outer_momentum";

/// Steps 1, 2, ... of a run with rounds of `round` steps; a round ends after the last step of the run, too. Without local and asynchronous updates
/// `round` is 1. With asynchronous updates only the ends of rounds matter.
/// A round has `fragments` equal parts. The outer step of fragment p follows the last step of part p, on weights that were sent `delay` steps before.
/// After the last step of the run all fragments take one, without delay. Nothing is in flight after a round.
struct Rounds {
  int64_t round = 1;
  int64_t last = 0;  ///< the run's last step; 0: not known, no round is shorter
  int64_t fragments = 1;
  int64_t delay = 0;  ///< below round / fragments

  /// True if a round ends after `step`: all islands then have the same shared weights.
  bool ends_after(int64_t step) const { return step % round == 0 || step == last; }
  /// The end of the round that contains `step`, and of the one before.
  int64_t end_of(int64_t step) const;
  int64_t end_before(int64_t step) const { return (step - 1) / round * round; }
  /// True if a multiple of `every` lies in the round that ends after `step`. False if `every` is 0, or no round ends after `step`.
  bool is_due(int64_t step, int64_t every) const;
  /// The fragment whose outer step follows `step`, if one does; after the last step it is that of all fragments.
  std::optional<int64_t> fragment_after(int64_t step) const;
  bool has_outer_step(int64_t step) const { return step == last || fragment_after(step).has_value(); }
  /// With a delay, the fragment whose sum begins after `step`, if one does.
  std::optional<int64_t> sent_after(int64_t step) const;
  /// True if an island may wait for the others after `step`. Communication that does not overlap waits already where a sum begins.
  bool may_wait_after(int64_t step) const { return has_outer_step(step) || sent_after(step).has_value(); }
};
/// `last`: Rounds::last.
Rounds rounds_of(const TrainingConfig& training, int64_t last);

/// The fragment of a parameter: blocks in turn; what is outside of the blocks is in the first, so that copies of a tied embedding stay together.
int64_t fragment_of(const std::string& parameter, int64_t fragments);
/// Figures of the outer steps after a step, over all ranks and the parameters that took them.
struct OuterResult {
  double gradient_norm = 0;  ///< |g|, of the outer gradient: the shared weights minus the mean of the weights that the islands have sent
  double sent_bytes = 0;     ///< by this rank
  double drift = 0;          ///< root mean square over the islands of |weights - mean| / |shared weights after the outer step|
};

/// One rank's part of the outer steps, on the shards that it owns. Memory beside the shared weights: the momentum, of the owned shards in the dtype of the
/// master weights, during an outer step two copies of the largest unit's part of a fragment, and with a delay a copy of the largest
/// fragment. Wire per round: 2(n-1)/n of the owned shards in that dtype, over the n islands.
class LocalUpdates {
 public:
  /// `shared`: the weights after the last outer step.
  LocalUpdates(Context& ctx, Mesh& mesh, const Stages& stages, const SharedShards& shared, const LocalConfig& config, DType master);

  /// The momentum becomes zero.
  void start_run(Context& ctx);
  /// Queues what follows `step` (from 1) of `rounds`: the sum of a fragment begins, or outer steps. The figures of outer steps, which figures()
  /// reads, are summed over the world. `counts`: whether this rank counts its shards. Returns whether there was an outer step.
  bool after_step(Context& ctx, const Rounds& rounds, int64_t step, bool counts);
  /// The outer steps of all fragments without delay, after which all islands have the shared weights.
  void synchronise_all(Context& ctx, bool counts);

  /// Three [1] f64: squares of outer gradient, drift and weights, of the last outer steps, each summed over the islands.
  const std::vector<Tensor>& figures() const { return figures_; }
  /// `bytes`: sent_bytes() after after_step().
  OuterResult result(const std::vector<double>& figures, double bytes) const;
  Tensor momentum(size_t stage, size_t unit) const { return momentum_[stage][unit]; }  ///< [shard_numel]; undefined if frozen
  /// Bytes that this rank sends in a round, and has sent in the last outer steps.
  double round_bytes() const;
  double sent_bytes() const { return sent_bytes_; }

 private:
  /// Elements [begin, end) of a unit's owned shard, all of one fragment.
  struct Piece {
    size_t stage, unit;
    int64_t begin, end, fragment;
    int64_t place = 0;  ///< in in_flight_
    Tensor sum = {};    ///< over the islands; defined from its beginning until the outer step
    Work work = {};     ///< of the sum. It may be over at once, so it does not tell whether the sum has begun.
    bool is_sent() const { return sum.defined(); }
  };
  void add_pieces(size_t stage, size_t unit);
  Tensor part(const Piece& piece, const Tensor& shard) const { return shard.flat(piece.begin, piece.end - piece.begin); }
  Tensor weights_of(const Piece& piece) const { return part(piece, stages_[piece.stage]->params().master(static_cast<int>(piece.unit))); }
  void begin(Context& ctx, Piece& piece);
  void finish(Context& ctx, Piece& piece, const OuterStep& step, bool counts);
  void synchronise(Context& ctx, std::optional<int64_t> fragment, const OuterStep& step, bool counts);
  void add_squares(Context& ctx, const Piece& piece, const Tensor& values, const Tensor& sum) const;

  Mesh& mesh_;
  const Stages& stages_;
  OuterStep step_;
  int64_t fragments_;
  const SharedShards& shared_;
  std::vector<std::vector<Tensor>> momentum_;  ///< by stage and unit
  std::vector<Piece> pieces_;                  ///< of each fragment in the order of the units, equal on the owners of a shard in all islands
  Tensor in_flight_;                           ///< with a delay: room for the sums of the largest fragment
  double sent_bytes_ = 0;
  Tensor sums_;                  ///< [3] f64
  std::vector<Tensor> figures_;  ///< views of sums_
};

}  // namespace trireme
