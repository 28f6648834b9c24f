#pragma once
// kernels/ops/norm.h in fp32, bf16 and fp16: a block a row, the row read once; statistics in fp32. Weight gradients in two passes over column slices, in a
// fixed order, without atomics.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd);
void add_rmsnorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, double epsilon, const Tensor& sum, const Tensor& y,
                         const Tensor& rstd);
void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual,
                            const Tensor& dx);
void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw);

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd);
void add_layernorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, double epsilon, const Tensor& sum,
                           const Tensor& y, const Tensor& mean, const Tensor& rstd);
void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& residual, const Tensor& dx);
void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db);

}  // namespace trireme::cuda
