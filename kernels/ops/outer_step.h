#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// The outer step of local updates: SGD with Nesterov momentum, in PyTorch's form, on the mean change of the weights of all islands in a round.
struct OuterStep {
  double learning_rate = 0.7;
  double momentum = 0.9;
  int islands = 1;
};

/// With theta the weights at the start of the round and m = sum / islands the mean weights at its end:
///   g = theta - m;   momentum = mu momentum + g;   theta = theta - lr (g + mu momentum)
/// computed in double as m + (1 - lr) g - lr mu momentum, so that lr 1 and mu 0 give m, to the bit.
/// In: `sum` over the islands of their weights; `weights`, `theta` and `momentum` (zero before the first round) of this island.
/// Out: `sum` = g; `weights` = weights - m, this island's drift; `theta` and `momentum`. All of equal shape and dtype.
/// Sources: Douillard et al. 2023, arXiv:2311.08105 (DiLoCo); Stich 2018, arXiv:1805.09767 (local SGD: lr 1, mu 0).
void outer_step(Context& ctx, const OuterStep& step, const Tensor& sum, const Tensor& weights, const Tensor& theta, const Tensor& momentum);

}  // namespace trireme
