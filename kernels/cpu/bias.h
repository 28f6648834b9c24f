#pragma once
// The biases of kernels/ops/matmul.h: threads take rows, and columns in the gradient.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y);
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias);

}  // namespace trireme::cpu
