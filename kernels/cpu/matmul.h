#pragma once
// kernels/ops/matmul.h by oneDNN, bound to ctx.threads: products in fp32 and bf16, biases in fp32.
#include <string>

#include "kernels/core/tensor.h"

namespace trireme::cpu {

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& y);
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw);

void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y);
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias);

std::string gemm_library();

}  // namespace trireme::cpu
