#pragma once
// The three matrix products of a linear layer y = x w^T (+ bias), separate operations so that the backward pass can be split.
// M rows of activations, D inputs, F outputs. All row-major; products accumulate in at least fp32.
#include <string>

#include "kernels/core/tensor.h"

namespace trireme {

/// y = x w^T + bias.   x [M,D], w [F,D], bias [F] or undefined, y [M,F].
void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y);
/// hidden = x w^T + bias, y = GELU(hidden) (kernels/ops/activation.h): one kernel on the GPU.   hidden, y [M,F].
void linear_gelu_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& hidden, const Tensor& y);
/// dx = dy w.          dy [M,F], w [F,D], dx [M,D].
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
/// dw += dy^T x, or dw = dy^T x without reading dw.   dy [M,F], x [M,D], dw [F,D] in the accumulator dtype (kernels/core/dtype.h). The results equal
/// those of adding to zeros, apart from the sign of a zero.
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw, bool add = true);

/// y += bias for each row.       y [M,F], bias [F].
void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y);
/// dbias += sum over rows of dy. dy [M,F], dbias [F] in the accumulator dtype.
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias);

/// Name and version of the library for matrix products of `ctx`, for the record of a run. On a GPU this loads it. Errors: ConfigError if it is
/// missing.
std::string gemm_library(const Context& ctx);
/// Limits that library to the instructions of ctx.isa, in the whole process. Call before the first matrix product.
void limit_gemm_library(const Context& ctx);

}  // namespace trireme
