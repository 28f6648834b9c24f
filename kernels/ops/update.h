#pragma once
#include <array>
#include <span>
#include <string_view>

#include "kernels/core/optimizer_traits.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/optimizer.h"

namespace trireme {

/// Which elements of which matrix of the model a range of a flat buffer is, for rules that look at more than one element (rows, columns, matrices).
/// A rank holds a box of the matrix, row-major, and the range is a part of it. A vector of n elements is a matrix [n,1].
struct MatrixRange {
  std::string_view name;                             ///< of the parameter: "blocks.3.mlp.up.weight"
  std::array<int64_t, 2> shape{0, 0};                ///< rows and columns of the global matrix
  std::array<int64_t, 2> start{0, 0}, extent{0, 0};  ///< this rank's box: its first row and column, its rows and columns
  int64_t begin = 0, end = 0;                        ///< the range's elements of the box, counted row by row; padding is not among them

  int64_t count() const { return end - begin; }
  /// Row and column, in the global matrix, of the range's first element. begin < end.
  std::array<int64_t, 2> first() const { return {start[0] + begin / extent[1], start[1] + begin % extent[1]}; }
};

/// The slice of one parameter: weight, gradient and the optimizer's state, of equal size and dtype.
struct UpdateSlice {
  Tensor w, g;
  std::array<Tensor, kMostStates> state;  ///< the first traits_of(optimizer).states are defined
  bool decay = false;
  MatrixRange matrix = {};  ///< what the first matrix.count() elements are; the others, if any, are padding
};
/// One step of `optimizer` with decoupled weight decay; of a rejected step (scalars[kFinite] = 0) nothing is written. All slices of a unit in one launch on the
/// GPU. `hyper`: epsilon is AdamW's alone.
void update_step(Context& ctx, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices);

/// The exponential moving average e of the weights w, of equal shape and dtype, after update_step() of the same scalars: AverageRule with
/// average_share(decay, scalars[kAcceptedSteps]). After a rejected step nothing is written.
void average_step(Context& ctx, double decay, const Tensor& scalars, const Tensor& w, const Tensor& e);

}  // namespace trireme
