#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// The outer step of local updates: SGD with Nesterov momentum, in PyTorch's form, on the mean change of the weights of all islands in a round.
struct OuterStep {
  double learning_rate = 0.7;
  double momentum = 0.9;
  int islands = 1;
  double blend = 1;  ///< part of the shared weights in the new weights of an island
};

/// With theta the shared weights after the last outer step, and m = sum / islands the mean of what the islands sent of their weights:
///   g = theta - m;   momentum = mu momentum + g;   theta = theta - lr (g + mu momentum);   weights = weights + blend (theta - weights)
/// computed in double as m + (1 - lr) g - lr mu momentum and theta + (1 - blend) (weights - theta), so that lr 1 and mu 0 give m, and blend 1 gives
/// theta, to the bit.
/// In: `sum` over the islands of the weights they sent; `weights` of this island, which may have changed since; `theta`; `momentum`, zero before the
/// first outer step.
/// Out: `sum` = g; `weights`; `theta`; `momentum`; `drift` = weights before the step - m. All of equal shape and dtype.
/// Sources: Douillard et al. 2023, arXiv:2311.08105 (DiLoCo); Stich 2018, arXiv:1805.09767 (local SGD: lr 1, mu 0); Douillard et al. 2025,
/// arXiv:2501.18512 (blend).
void outer_step(Context& ctx, const OuterStep& step, const Tensor& sum, const Tensor& weights, const Tensor& theta, const Tensor& momentum,
                const Tensor& drift);

}  // namespace trireme
