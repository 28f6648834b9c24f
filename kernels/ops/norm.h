#pragma once
// Row normalisations over the last dimension. M rows, D columns; x, y, w, b, dy, dx of one dtype; mean, rstd, dw, db in its accumulator
// (kernels/core/dtype.h). dx is overwritten; dw and db are added to.
#include "kernels/core/tensor.h"

namespace trireme {

/// y = x * rstd * (w + offset), rstd = 1 / sqrt(mean(x^2) + epsilon).   x, y [M,D], w [D], rstd [M].   Source: Zhang & Sennrich 2019,
/// arXiv:1910.07467. `offset` is added in the accumulator's dtype: Gemma stores its weights less 1.
void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd, double offset = 0);
/// sum = a + b; y = rmsnorm(sum). One pass over memory on the GPU.   a, b, sum, y [M,D].
void add_rmsnorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, double epsilon, const Tensor& sum, const Tensor& y,
                         const Tensor& rstd, double offset = 0);
/// dx = rstd * (g - x * rstd^2 * mean(g*x)) + residual, with g = dy * (w + offset).   residual [M,D]: gradient of the skip connection, or undefined.
void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual,
                            const Tensor& dx, double offset = 0);
/// dw += sum over rows of dy * x * rstd.
void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw);
/// Fused backward_input + backward_weight, bit-identical to calling both. One pass over dy and x on the GPU.
void rmsnorm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual, const Tensor& dx,
                      const Tensor& dw, double offset = 0);

/// y = (x - mean) * rstd * w + b, rstd = 1 / sqrt(var + epsilon), var biased.   x, y [M,D], w, b [D], mean, rstd [M].
/// Source: Ba et al. 2016, arXiv:1607.06450.
void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd);
/// sum = a + b; y = layernorm(sum) with weight w and bias `bias`.
void add_layernorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, double epsilon, const Tensor& sum,
                           const Tensor& y, const Tensor& mean, const Tensor& rstd);
/// dx = rstd * (g - mean(g) - n * mean(g*n)) + residual, with g = dy*w and n = (x - mean) * rstd.   residual as in rmsnorm_backward_input.
void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& residual, const Tensor& dx);
/// dw += sum of dy * (x - mean) * rstd; db += sum of dy.
void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db);
/// As rmsnorm_backward.
void layernorm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                        const Tensor& residual, const Tensor& dx, const Tensor& dw, const Tensor& db);

}  // namespace trireme
