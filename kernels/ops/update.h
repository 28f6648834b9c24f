#pragma once
#include <array>
#include <span>

#include "kernels/core/optimizer_traits.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/optimizer.h"

namespace trireme {

/// The slice of one parameter: weight, gradient and the optimizer's state, of equal size and dtype.
struct UpdateSlice {
  Tensor w, g;
  std::array<Tensor, kMostStates> state;  ///< the first traits_of(optimizer).states are defined
  bool decay = false;
};
/// One step of `optimizer` with decoupled weight decay; of a rejected step (scalars[kFinite] = 0) nothing is written. All slices of a unit in one launch on the
/// GPU. `hyper`: epsilon is AdamW's alone.
void update_step(Context& ctx, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices);

/// The exponential moving average e of the weights w, of equal shape and dtype, after update_step() of the same scalars: AverageRule with
/// average_share(decay, scalars[kAcceptedSteps]). After a rejected step nothing is written.
void average_step(Context& ctx, double decay, const Tensor& scalars, const Tensor& w, const Tensor& e);

}  // namespace trireme
