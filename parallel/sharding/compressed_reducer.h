#pragma once
#include <memory>
#include <vector>

#include "parallel/sharding/reducer.h"
#include "parallel/sharding/unit_message.h"

namespace trireme {

struct CompressionOptions {
  EncodingOptions encoding;
  bool error_feedback = true;
  bool replicas_only = false;  ///< only kReplicas is compressed: `replicate` is the axis of the slow links
  int64_t warmup_steps = 0;    ///< the first steps send the gradients as they are
  uint64_t seed = 0;           ///< for the elements that kRandomK draws and the first bases of kLowRank
  int64_t rank = 4;            ///< kLowRank: columns of the factors
};

/// True if the gradient of a parameter is compressed: matrices are, vectors and gradients that are partial over tensor ranks are not.
bool is_compressed(const ParamSpec& spec);

/// The message with which a rank sends elements [begin, begin + count) of a unit's gradient. `warm_up`: all of them as they are.
UnitMessage gradient_message(const Unit& unit, const CompressionOptions& options, int64_t begin, int64_t count, DType gradient, bool warm_up);
/// What kRandomK draws in step `step` for a segment.
EncodingDraw gradient_draw(const CompressionOptions& options, const Unit::Segment& segment, int64_t step);

/// The sum of gradients with lossy messages and error feedback. Each element is encoded once per hop, and the owner sums what it decodes in rank
/// order. Matrices are compressed; vectors and gradients that are partial over tensor ranks are sent as they are; padding is not sent. Block scales,
/// top-k and random-k apply to the part of one parameter that one rank owns.
///   kScatter: one all_to_all_v, each owner's part encoded for it. Wire: encoded bytes of the other ranks' parts.
///   kReplicas: the same over pieces of the shard, then an all-gather of the encoded sums, which every rank decodes, the owner of the piece included:
///     all replicas hold equal bits. Wire: encoded bytes of the other pieces, then (n-1) times those of the largest piece. The second hop runs in
///     finish() and overlaps nothing.
///   kTied: the plain sum.
/// Memory, with error feedback: errors of kScatter P elements and P/S more, of kReplicas 2P/S and 2P/(S*R), in the gradient dtype, for P elements in
/// all units, S shards and R replicas. A step's new errors replace the old ones only when the step is accepted, in settle(); until then those of other
/// ranks' parts are in Reduction::whole. So a unit's full gradient must live from its reduction to settle(), and gradients cannot be accumulated
/// in shards. In a group of one rank nothing is sent and nothing compressed.
/// Sources: Rajbhandari et al. 2019, arXiv:1910.02054; Wang et al. 2023, arXiv:2306.10209 (one quantisation per hop); Tang et al. 2021, arXiv:2102.02888
/// (errors of senders and owners).
class CompressedReducer final : public Reducer {
 public:
  /// `wire`: dtype of the sums that are not compressed (SumReducer). `gradient`: f32 or f64.
  CompressedReducer(Context& ctx, std::vector<Unit*> units, const CompressionOptions& options, DType wire, DType gradient);

  void begin_step(int64_t step) override { step_ = step; }
  void settle(Context& ctx, int unit, const Tensor& scalars) override;
  /// After the warm-up.
  double sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const override;
  std::vector<State> state(int unit) const override;

 private:
  /// Elements of a unit that one rank of a group sums: a range of the flat buffer, of equal size on all ranks, padding included.
  struct Piece {
    int64_t begin, count;
  };
  /// What one reduction of a unit keeps, by its kind.
  struct Sum {
    std::vector<Piece> pieces;  ///< by rank of the group
    int rank = 0;
    int64_t base = 0;    ///< flat position of the first element of `error`
    Tensor error;        ///< what the messages to owners lacked: all pieces. Undefined: none
    Tensor next_error;   ///< the same after this step: the rank's own piece for kScatter, else all pieces
    Tensor whole;        ///< kScatter: its other pieces are the next errors of this step, until settle()
    Tensor owner_error;  ///< kReplicas: what the encoded sum of this rank's own piece lacked
    Tensor next_owner_error;
    Tensor sending, receiving;
    Work work;
  };
  /// A sum without pieces is not compressed.
  struct UnitSums {
    Sum scatter, replicas;
    Sum& of(Reduction::Kind kind) { return kind == Reduction::Kind::kScatter ? scatter : replicas; }
    const Sum& of(Reduction::Kind kind) const { return kind == Reduction::Kind::kScatter ? scatter : replicas; }
  };

  UnitMessage message(int unit, const Piece& piece, bool warm_up) const;
  EncodingDraw draw(const Unit::Segment& segment) const { return gradient_draw(options_, segment, step_); }
  bool warms_up() const { return step_ < options_.warmup_steps; }
  int64_t largest_message(int unit, const Sum& sum, bool warm_up) const;
  void prepare(Context& ctx, Sum& sum, const std::vector<Piece>& pieces, int rank, bool scatter);
  bool compresses(const Reduction& reduction) const;
  void begin(Context& ctx, const Reduction& reduction) override;
  void end(Context& ctx, const Reduction& reduction) override;
  void add_decoded(Context& ctx, int unit, const Piece& piece, const Tensor& received, const Tensor& out) const;

  std::vector<Unit*> units_;
  CompressionOptions options_;
  DType gradient_;
  SumReducer plain_;
  std::vector<UnitSums> sums_;  ///< by unit
  int64_t step_ = 0;
};

}  // namespace trireme
