#pragma once
// CPU kernels for the biases of kernels/ops/matmul.h. Threads share the rows or, for the gradient, the columns.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y);
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias);

}  // namespace trireme::cpu
