#pragma once
// GPU implementation of kernels/ops/muon.h.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void muon_momentum(Context& ctx, double momentum, const Tensor& scalars, const Tensor& g, const Tensor& m, const Tensor& u);
void divide_by_norm(Context& ctx, const Tensor& squares, double epsilon, const Tensor& x);
void weighted_sum(Context& ctx, double a, const Tensor& x, double b, const Tensor& y, const Tensor& out);

}  // namespace trireme::cuda
