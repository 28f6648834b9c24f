#pragma once
#include <array>
#include <span>
#include <string_view>

#include "kernels/core/optimizer_traits.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/update_rules.h"

namespace trireme {

/// Maps a range of a flat buffer to elements of a matrix of the model, for rules that depend on more than one element (rows, columns, matrices).
/// A rank has a box of the matrix, row-major, and the range is a part of the box. A vector of n elements is a matrix [n,1].
struct MatrixRange {
  std::string_view name;                             ///< parameter, "blocks.3.mlp.up.weight"
  std::array<int64_t, 2> shape{0, 0};                ///< rows and columns of the global matrix
  std::array<int64_t, 2> start{0, 0}, extent{0, 0};  ///< this rank's box: first row and column, number of rows and columns
  int64_t begin = 0, end = 0;                        ///< element range in the box, row-major, without padding

  int64_t count() const { return end - begin; }
  /// Row and column, in the global matrix, of the range's first element. begin < end.
  std::array<int64_t, 2> first() const { return {start[0] + begin / extent[1], start[1] + begin % extent[1]}; }
};

/// The slice of one parameter: weight, gradient and optimizer state, of equal size and dtype. For an optimizer of matrices `g` is the update of
/// kernels/ops/muon.h, and there is no state.
struct UpdateSlice {
  Tensor w, g;
  std::array<Tensor, kMaxStates> state;  ///< the first states_read(optimizer) are defined
  bool decay = false;
  MatrixRange matrix = {};  ///< position of the first matrix.count() elements; the others are padding
};
/// Number of states that update_step() reads and writes.
constexpr int states_read(Optimizer optimizer) { return traits_of(optimizer).updates_matrices ? 0 : traits_of(optimizer).states; }
/// What a rule reads of the scalars of a step, for parameters with or without decay.
template <class C>
UpdateScalars<C> update_scalars(const AdamW& hyper, const double* scalars, bool decays) {
  const double decay = decays ? 1 - scalars[kLearningRate] * hyper.weight_decay : 1;
  return {static_cast<C>(scalars[kGradScale]), static_cast<C>(scalars[kLearningRate]), static_cast<C>(hyper.beta1), static_cast<C>(hyper.beta2),
          static_cast<C>(decay)};
}

/// One step of `optimizer` with decoupled weight decay; a rejected step (scalars[kAccepted] = 0) writes nothing. On the GPU, one launch for all slices
/// of a unit. Only AdamW uses hyper.epsilon.
void update_step(Context& ctx, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices);

/// Updates the exponential moving average e of the weights w, of equal shape and dtype, after update_step() with the same scalars: AverageRule with
/// average_share(decay, scalars[kAcceptedSteps]). A rejected step writes nothing.
void average_step(Context& ctx, double decay, const Tensor& scalars, const Tensor& w, const Tensor& e);

/// to := from, of equal shape and dtype, if scalars[kAccepted] says that the step is accepted. A rejected step writes nothing.
void copy_accepted(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to);

}  // namespace trireme
