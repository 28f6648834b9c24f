#pragma once
#include <vector>

#include "parallel/sharding/compressed_reducer.h"
#include "parallel/sharding/reducer.h"
#include "parallel/sharding/unit.h"

namespace trireme {

/// True if the gradient of a parameter is summed as two factors of `rank` columns: a matrix that is_compressed, of m x n elements on this tensor rank,
/// whose factors together have less than half as many, 2 rank (m+n) < m n.
bool has_low_rank(const ParamSpec& spec, int64_t rank);
/// Elements that a data rank contributes to the sum of a parameter after the warm-up: those of its factors, rank (m+n), or of its gradient.
int64_t summed_elements(const ParamSpec& spec, int64_t rank);
/// basis [r,n] := the vectors from which the first step starts, drawn from N(0,1) by (seed, name, global column).
void draw_basis(Context& ctx, uint64_t seed, const ParamSpec& spec, const Tensor& basis);

/// PowerSGD: data ranks sum a matrix as P Q', with one step of power iteration from the basis Q [r,n] of the step before. G_i is the gradient of data
/// rank i, e_i what it has not sent yet:
///   M_i = G_i + e_i;   P = sum of M_i Q^T, then orthonormal columns;   Q' = sum of P^T M_i;   the sum is P Q', and the next e_i is M_i - P P^T M_i.
/// P^T is linear, so what was sent and what the ranks keep add up to the gradients. The sum of all M_i determines P and Q': how data ranks are divided
/// into shards and replicas, and gradients between data ranks, makes no difference apart from rounding.
///   kScatter: all-reduces over `data`, of all P of the unit with what is not compressed, then of all Q'. The second one runs in finish() and overlaps
///     nothing. Each rank computes its own part of P Q'. Wire: 2(D-1)/D * summed_elements() in the gradient dtype, for D data ranks.
///   kReplicas: nothing is left to sum.
///   kTied: the plain sum. So are all kinds during the warm-up, and in a group of one data rank.
/// Memory: the bases twice; with error feedback P_all elements of errors and P_all/S more, in the gradient dtype, for P_all elements in all units and S
/// shards. Errors and bases change only in settle(), if the step is accepted; until then the next errors are in Reduction::whole, which must live as
/// long (CompressedReducer). A vector of a basis for which a step has nothing is kept for the next one.
/// Source: Vogels et al. 2019, arXiv:1905.13727. As there, the error is each rank's own, and the basis is kept from step to step.
class LowRankReducer final : public Reducer {
 public:
  /// `wire`: dtype of the sums of SumReducer. `gradient`: f32 or f64. Sums are over ShardGroup::data, the product of the
  /// groups of kScatter and kReplicas.
  LowRankReducer(Context& ctx, std::vector<Unit*> units, const CompressionOptions& options, DType wire, DType gradient);

  void begin_step(int64_t step) override { step_ = step; }
  void settle(Context& ctx, int unit, const Tensor& scalars) override;
  /// After the warm-up. Both hops count as kScatter.
  double sent_bytes(Reduction::Kind kind, int unit, int64_t shard_numel, int ranks) const override;
  /// "scatter_error" of the unit, and "basis" [r,n] of each matrix.
  std::vector<State> state(int unit) const override;

 private:
  Communicator& data_of(int unit) const { return *units_[static_cast<size_t>(unit)]->group().data; }
  /// A range of a unit's flat buffer.
  struct Range {
    int64_t begin, count;
  };
  struct Matrix {
    const ParamSpec* spec;
    Range range;  ///< without rows that pad a vocabulary
    int64_t rows, columns;
    int64_t left, right;  ///< first elements of P in Sum::message and of the basis in Sum::basis
  };
  /// What the sum of a unit keeps.
  struct Sum {
    std::vector<Matrix> matrices;
    std::vector<Range> plain;   ///< parameters that are not compressed, in the order of the message
    std::vector<Range> rest;    ///< all that belongs to no matrix, padding included
    Range own;                  ///< this rank's shard
    int64_t message_numel = 0;  ///< all P, then the parameters that are not compressed
    int64_t basis_numel = 0;
    Tensor error, next_error;  ///< the unit's errors; after this step those of the own shard. Undefined: no error feedback
    Tensor basis, next_basis;  ///< the bases of all matrices
    Tensor whole;              ///< of the step: M, then the next errors, until settle()
    Tensor message;
    Work work;
  };

  void add_segments(Sum& sum, const Unit& unit) const;
  bool compresses(const Context& ctx, const Reduction& reduction) const;
  Tensor left_of(const Sum& sum, const Matrix& matrix) const;
  Tensor right_of(const Tensor& basis, const Matrix& matrix) const;
  void begin(Context& ctx, const Reduction& reduction) override;
  void end(Context& ctx, const Reduction& reduction) override;

  std::vector<Unit*> units_;
  CompressionOptions options_;
  DType gradient_;
  SumReducer plain_;
  std::vector<Sum> sums_;  ///< by unit
  int64_t step_ = 0;
};

}  // namespace trireme
