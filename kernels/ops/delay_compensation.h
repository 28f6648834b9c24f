#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// Delay compensation of a gradient g that was computed from the weights `then`, and is applied to the weights w:
///   g = g + lambda g g (w - then)
/// which is the first-order change of the gradient, with the diagonal of g g^T for the Hessian. In double; equal weights leave g as it is, to the
/// bit. All of one shape and dtype. CPUs only.
/// Source: Zheng et al. 2016, arXiv:1609.08326 (DC-ASGD).
void compensate_delay(Context& ctx, double lambda, const Tensor& w, const Tensor& then, const Tensor& g);

/// sum = sum + factor x, in double. All of one shape and dtype. CPUs only.
void add_scaled(Context& ctx, double factor, const Tensor& x, const Tensor& sum);

}  // namespace trireme
