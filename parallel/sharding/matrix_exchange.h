#pragma once
// For optimizers whose update of a matrix depends on the whole matrix, of which each rank has a piece.
#include <functional>
#include <span>
#include <vector>

#include "parallel/sharding/unit.h"

namespace trireme {

/// Deals matrices to `owners` ranks by cost: the dearest first, each to the rank with the least cost so far, the first of several. Returns the owner of
/// each matrix.
std::vector<int> deal_by_cost(std::span<const double> costs, int owners);

/// The hidden matrices of a stage's units. Each rank of a replica and stage owns some of them, and has a piece of every one: what is in its shard of its
/// tensor rank's part. transform() brings each matrix to its owner and the result back, so the bits do not depend on the layout.
///
/// Two exchanges each way: over `shard`, after which one rank has the whole part of each tensor rank, and over `tensor`. Replicas do the same work.
/// Wire, each way: (S-1)/S of P/S elements over `shard`, (t-1)/t of P/S elements over `tensor`, for P elements of a tensor rank's matrices.
/// Memory of transform(): 4 P/S elements.   Source: Liu et al. 2025, arXiv:2502.16982 (distributed Muon).
class MatrixExchange {
 public:
  /// `cost`: of the transformation of a matrix of a shape. The units are of one shard group and outlive this. Every rank of `tensor` has the same units.
  MatrixExchange(const std::vector<Unit*>& units, Communicator& tensor, double (*cost)(const std::array<int64_t, 2>& shape));

  bool empty() const { return matrices_.empty(); }
  /// This rank's piece of a matrix: elements of its unit's flat buffer, and their place in the tensor of all pieces of this rank.
  struct Piece {
    int unit;
    Unit::Segment segment;
    int64_t begin;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }  ///< without empty ones
  int64_t elements() const;                                     ///< of all pieces

  /// `pieces` [elements()]: this rank's pieces. Calls change(shape, matrix) for each matrix that this rank owns, to change it in place, and returns the
  /// pieces of the results, likewise. Collective over the shard group and `tensor`.
  using Change = std::function<void(const std::array<int64_t, 2>& shape, const Tensor& matrix)>;
  Tensor transform(Context& ctx, const Tensor& pieces, const Change& change) const;

 private:
  struct Range {
    int64_t begin, count;
  };
  struct Matrix {
    const ParamSpec* spec;
    int64_t flat_begin;
    int64_t shard_numel;
    int shard, tensor;               ///< the owner
    Range in_shard(int rank) const;  ///< the elements of the tensor rank's part that shard `rank` has
  };
  template <class Body>
  void each_piece(const Body& body) const;
  void transform_parts(Context& ctx, const std::vector<Tensor>& parts, const Tensor& like, const Change& change) const;

  Communicator& shard_;
  Communicator& tensor_;
  std::vector<Matrix> matrices_;  ///< by shard rank of the owner
  std::vector<Piece> pieces_;
};

}  // namespace trireme
