#pragma once
#include <span>
#include <vector>

#include "parallel/sharding/aggregation_rule.h"
#include "parallel/sharding/compressed_reducer.h"
#include "parallel/sharding/reducer.h"
#include "parallel/sharding/unit.h"

namespace trireme {

/// In place of the sum over n data ranks, a robust rule over their gradients (aggregation_rule.h), which the trainer makes comparable: each is the mean
/// over the data rank's own valid tokens. Each data rank owns a piece of every unit, with replicas a part of a shard, and receives the piece of all n.
///   kScatter: one all_to_all_v over `data`. Wire: bytes of the other ranks' pieces, (n-1)/n of the unit's, as a reduce-scatter over n shards. With
///     compression each data rank encodes each piece for its owner, with error feedback of its own, and the owner decodes n messages into n copies, to
///     which the rule applies. Wire: encoded bytes of the other ranks' pieces.
///   kReplicas: nothing is left to exchange.
///   kTied: the plain sum of the n gradients of the own piece, because a rule is not linear: what is partial is summed before it.
///   sum_partial(): likewise over tensor ranks.
/// Then, once a step, aggregate() decides and writes the shards. Wire: all-reduces over `step` of n and of n or n^2 f64; with R replicas, an all-gather
/// of the pieces of each shard, (R-1) times the bytes of the largest piece.
/// Memory in the gradient dtype, P elements in all units: n pieces, P; the origins, P/n; with momentum n pieces more, P, which are optimizer memory.
/// In flight: with replicas and shards a unit's gradient in the order of the pieces; with gradients that accumulate in shards, what arrives. Error
/// feedback takes P and P/S elements more for S shards, which are optimizer memory, and a unit's full gradient must live from its reduction to settle().
/// A data rank that aggregate() leaves out keeps its errors, as after a rejected step: those of a gradient that is not finite would never leave it.
/// It protects from what data ranks send as gradients, whatever bytes a message has. A bad rank still owns pieces, and is still trusted in every other sum.
class RobustReducer final : public Reducer {
 public:
  /// `gradient`: f32 or f64. A rule judges data ranks as wholes, so all units have one group.
  /// `compression`: with encoding kNone, gradients are sent as they are.
  RobustReducer(Context& ctx, std::vector<Unit*> units, const AggregationOptions& options, const CompressionOptions& compression, DType gradient);

  void begin_step(int64_t step) override;
  void settle(Context& ctx, int unit, const Tensor& scalars) override;
  /// With compression, after the warm-up.
  double sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const override;
  /// "worker_momentum" of each data rank, in the own piece; "scatter_error" of this one, in the whole unit.
  std::vector<State> state(int unit) const override;

  /// Sums what is partial over tensor ranks. Wire: n times that of GradStore::sum_partial, divided by the n pieces.
  void sum_partial(Context& ctx, Communicator& tensor, Communicator& kv);

  int data_ranks() const;
  const AggregationOptions& options() const { return options_; }
  /// The steps of aggregate(). `rows`: the data ranks that take part, ascending.
  /// sums [n] f64 += squares of each gradient in the own piece, copies that do not count included, because each of them must be finite.
  void add_squares(Context& ctx, const Tensor& sums) const;
  void apply_momentum(Context& ctx, std::span<const int> rows);
  void find_origins(Context& ctx, std::span<const int> rows);  ///< the coordinate-wise median
  /// add_centered_products() from the origins, over the elements that this rank counts: over all ranks, every element of every parameter counts once.
  void add_products(Context& ctx, std::span<const int> rows, const Tensor& products) const;
  void combine(Context& ctx, std::span<const int> rows, const Combination& combination);  ///< writes the shards
  void reject(Context& ctx);                                                              ///< makes the shards NaN, which rejects the step

 private:
  /// A range of a unit's flat buffer.
  struct Range {
    int64_t begin, count;
  };
  struct Copies {
    std::vector<Range> pieces;  ///< by data rank
    Range own;
    int64_t largest = 0;  ///< elements of the largest piece
    Tensor gradients;     ///< [n, own.count]
    Tensor momenta;       ///< [n, own.count]; undefined without momentum
    Tensor origin;        ///< [own.count]
    Range own_shard;      ///< all pieces of this rank's shard
    Tensor error;         ///< what this rank's messages lacked, of the whole unit; undefined without error feedback
    Tensor next_error;    ///< [own_shard.count], the same after this step: combine() overwrites this part of `whole`
    Tensor whole;         ///< its other parts are the next errors of this step, until settle()
    bool empty = true;    ///< nothing has arrived in this step
    Tensor sending, arriving;
    Tensor shard;  ///< Reduction::shard
    Work work;
    bool exist() const { return gradients.defined(); }  ///< false: the unit is frozen
  };

  std::vector<Range> pieces_of(int64_t owned) const;
  void begin(Context& ctx, const Reduction& reduction) override;
  void end(Context& ctx, const Reduction& reduction) override;
  Tensor in_order(Context& ctx, const Copies& copies, const Tensor& whole) const;
  bool compresses() const { return compression_.encoding.encoding != Encoding::kNone; }
  UnitMessage message(int unit, const Range& piece, bool warm_up) const;
  EncodingDraw draw(const Unit::Segment& segment) const { return gradient_draw(compression_, segment, step_); }
  void begin_encoded(Context& ctx, const Reduction& reduction);
  void decode_copies(Context& ctx, int unit);
  void keep_errors(Context& ctx, Copies& copies, const Tensor& scalars) const;

  std::vector<Unit*> units_;
  Communicator& data_;
  Communicator& replicate_;
  int shards_, shard_;
  AggregationOptions options_;
  CompressionOptions compression_;
  DType gradient_;
  int64_t step_ = 0;
  std::vector<Copies> copies_;  ///< by unit
  std::vector<int> rows_;       ///< of the last aggregation
};

/// Replaces the gradients of all stages of a rank by what their rule makes of the data ranks' gradients, all parameters together. Data ranks whose
/// gradient is not finite, or that are `absent`, i.e. have no valid token in this step, do not take part and count as faulty; if they are more than
/// f, the shards become NaN. Returns by data rank the distance of its gradient (with momentum, of its momentum) from the coordinate-wise median,
/// divided by the median of these distances; infinite for those that do not take part. Collective over `step`, the ranks that take optimizer steps together.
std::vector<double> aggregate(Context& ctx, std::span<RobustReducer* const> reducers, Communicator& step, int data_rank, bool absent);

/// Above this distance a data rank is suspected: no good one of many is so far from the median, but a wrong one may well be nearer.
inline constexpr double kSuspectDistance = 2;

}  // namespace trireme
