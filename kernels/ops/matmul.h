#pragma once
// The three products of a linear layer y = x w^T (+ bias), each its own operation so that the backward pass can be split.
// M rows of activations, D inputs, F outputs. All row-major; products accumulate in at least fp32.
#include <string>

#include "kernels/core/tensor.h"

namespace trireme {

/// y = x w^T.          x [M,D], w [F,D], y [M,F].
void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y);
/// dx = dy w.          dy [M,F], w [F,D], dx [M,D].
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
/// dw += dy^T x.       dy [M,F], x [M,D], dw [F,D] in the gradient dtype.
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw);

/// y += bias, row by row.        y [M,F], bias [F].
void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y);
/// dbias += sum over rows of dy. dy [M,F], dbias [F].
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias);

/// The library behind the fast products and its version, for the record of a run.
std::string gemm_library();

}  // namespace trireme
