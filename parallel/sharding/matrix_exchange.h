#pragma once
// For optimizers whose update of a matrix depends on the whole matrix, of which each rank has a piece.
#include <functional>
#include <span>
#include <vector>

#include "parallel/sharding/unit.h"

namespace trireme {

using MatrixShape = std::array<int64_t, 2>;

/// Deals matrices to `owners` ranks by cost: the most expensive first, each to the rank with the least cost so far, the first of several. Returns the
/// owner of each matrix.
std::vector<int> deal_by_cost(std::span<const double> costs, int owners);

/// Matrices dealt to S shard ranks x t tensor ranks, t innermost.
struct DealtMatrices {
  std::vector<int> owner;    ///< by matrix: shard rank * t + tensor rank
  double most_parts = 0;     ///< elements of one tensor rank's parts of the matrices whose owners have one shard rank, where that is most
  double most_matrices = 0;  ///< elements of the matrices of one owner, where that is most
};
DealtMatrices deal(std::span<const MatrixShape> shapes, double (*cost)(const MatrixShape& shape), int shards, int tensor);

/// The trainable hidden matrices of a stage's units. Each of the S x t ranks of a replica that share the stage owns some of them. The part of a matrix
/// is what one tensor rank has of it, a piece what one shard of that part has. transform() brings each matrix to its owner and the result back to all
/// pieces, so a transformation of equal matrices gives equal bits under every sharding and split. Replicas do the same work.
///
/// Two exchanges each way: pieces to parts over `shard`, and parts to matrices over `tensor`.
/// Wire, each way: (S-1)/S of P/S elements over `shard`, (t-1)/t of P/S elements over `tensor`, for P elements of a tensor rank's parts, on average
/// over the ranks; the owner of a matrix that is larger than P/S receives all of it.
/// Memory of transform(), elements: at most 2 * (DealtMatrices::most_parts + most_matrices), or what it has and the change takes if that is more.
/// Source: Liu et al. 2025, arXiv:2502.16982 (distributed Muon).
class MatrixExchange {
 public:
  /// `cost`: of the transformation of a matrix of a shape. The units are of one shard group and outlive this. Every rank of `tensor` has the same units.
  MatrixExchange(const std::vector<Unit*>& units, Communicator& tensor, double (*cost)(const MatrixShape& shape));

  bool empty() const { return matrices_.empty(); }
  /// This rank's piece of a matrix: elements of its unit's flat buffer, and their place in the tensor of all pieces of this rank.
  struct Piece {
    int unit;
    Unit::Segment segment;
    int64_t begin;
  };
  const std::vector<Piece>& pieces() const { return pieces_; }  ///< without empty ones
  int64_t elements() const;                                     ///< sum over the pieces

  /// `pieces` [elements()]: this rank's pieces. Calls change(shape, matrix) for each matrix that this rank owns, to change it in place, and returns the
  /// pieces of the results, likewise. Collective over the shard group and `tensor`.
  using Change = std::function<void(const MatrixShape& shape, const Tensor& matrix)>;
  Tensor transform(Context& ctx, Tensor pieces, const Change& change) const;

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
  void transform_parts(Context& ctx, const std::vector<Tensor>& parts, DType dtype, const Change& change) const;

  Communicator& shard_;
  Communicator& tensor_;
  std::vector<Matrix> matrices_;  ///< by shard rank of the owner
  std::vector<Piece> pieces_;
};

}  // namespace trireme
