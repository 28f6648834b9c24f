#pragma once
// kernels/ops/norm.h in fp32: threads take rows, and columns in the weight gradients.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd);
void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& dx);
void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw);

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd);
void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& dx);
void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db);

}  // namespace trireme::cpu
