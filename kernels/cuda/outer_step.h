#pragma once
// GPU implementation of kernels/ops/outer_step.h.
#include "kernels/ops/outer_step.h"

namespace trireme::cuda {

void outer_step(Context& ctx, const OuterStep& step, const Tensor& sum, const Tensor& weights, const Tensor& theta, const Tensor& momentum,
                const Tensor& drift);

}  // namespace trireme::cuda
