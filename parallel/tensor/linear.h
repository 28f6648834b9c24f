#pragma once
#include <functional>
#include <vector>

#include "parallel/param.h"
#include "parallel/tensor/region.h"

namespace trireme {

/// The dimension of W that the tensor ranks share.
enum class LinearSplit : uint8_t {
  kOutputs,  ///< output rows ("column-parallel"): y is split, dx is a partial sum
  kInputs,   ///< input columns ("row-parallel"): x is split, y is a partial sum
};

/// A low-rank addition to some outputs of a linear layer: y += scale * (x A^T) B^T.   Source: Hu et al. 2021, arXiv:2106.09685.
/// A rank has all of A, and the rows of B that it has of W, if the layer splits outputs: its gradient of A is then partial over the tensor axis. If the
/// layer splits inputs, the rank has the columns of A and all of B, and its gradient of B is partial. The layer communicates no more than without.
struct Adapter {
  Param* a;  ///< [r,D]
  Param* b;  ///< [n,r]
  double scale;
  int64_t first_output = 0;  ///< on this rank: the outputs [first_output, first_output + n) of the layer get the addition

  /// scale * x A^T.   x [M,D], result [M,r].
  Tensor narrow(Context& ctx, const Tensor& x) const;
  /// scale * dy B.    dy [M,n], result [M,r].
  Tensor narrow_gradient(Context& ctx, const Tensor& dy) const;
  /// The gradients of its outputs, [M,n]: columns of dy_all [M,F].
  Tensor outputs_of(Context& ctx, const Tensor& dy_all) const;
};

/// Y = X W^T + b, plus what its adapters add, with W split over the tensor axis.
///            x on this rank   w         b       y on this rank   communication, forward and backward
///   kOutputs [M/t or M, D]    [F/t,D]   [F/t]   [M,F/t]          `enter`, and under sequence parallelism one more all-gather for dw
///   kInputs  [M,D/t]          [F,D/t]   [F]     [M/t or M, F]    `exit`; b is added once, behind the sum
/// x is [M/t or M, D] as the residual stream has it: sequence parallelism saves memory by keeping only this rank's rows between forward and backward.
/// What gather_input and gather_gradient start overlaps whatever does not need it, and the reduction of dx overlaps the product dw.
/// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3; Korthikanti et al. 2022, arXiv:2205.05198, section 4.2.2.
struct Linear {
  Param* weight;
  Param* bias;  ///< null: none
  LinearSplit split;
  const Region* region;
  const char* name;  ///< name of the layer in an OperationLog
  std::vector<Adapter> adapters = {};

  Tensor forward(Context& ctx, const Tensor& x) const;
  /// Returns GELU(Y) and sets `hidden` to Y, which the backward of GELU needs. Requires kOutputs and a bias, and no adapters.
  Tensor forward_gelu(Context& ctx, const Tensor& x, Tensor& hidden) const;
  /// dy of all rows, which both products of the backward read. Communicates for kInputs under sequence parallelism; otherwise it is dy.
  [[nodiscard]] PendingRegionOp gather_gradient(Context& ctx, const Tensor& dy) const;
  /// dx = dy W + the sum of scale * (dy B) A over the adapters, as x is split.   dy_all of all rows.
  [[nodiscard]] PendingRegionOp backward_input(Context& ctx, const Tensor& dy_all) const;
  /// x of all rows, for dw. Communicates for kOutputs under sequence parallelism; otherwise, and if nothing that reads it is trained, it is x.
  [[nodiscard]] PendingRegionOp gather_input(Context& ctx, const Tensor& x) const;
  /// Shows each product dw = dy^T x of a trainable matrix: the weight's, then those of adapters, whose narrow operands it computes again from x and dy
  /// instead of keeping them.   x_all, dy_all: of all rows.
  void weight_products(Context& ctx, const Tensor& x_all, const Tensor& dy_all,
                       const std::function<void(Param& weight, const Tensor& dy, const Tensor& x)>& visit) const;
  /// dw += dy^T x, db += the sum of the rows of dy, for all trainable parameters.   dy_all, x: of all rows.
  void backward_weight(Context& ctx, PendingRegionOp x, const Tensor& dy_all) const;

 private:
  bool splits_outputs() const { return split == LinearSplit::kOutputs; }
  /// y += what the adapters add.   x of all rows.
  void add_adapters(Context& ctx, const Tensor& x, const Tensor& y) const;
};

}  // namespace trireme
