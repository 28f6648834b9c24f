#pragma once
// CPU kernels of kernels/ops/activation.h. Threads share the rows (gated) or the elements (GELU).
#include "kernels/core/gelu.h"
#include "kernels/core/tensor.h"

namespace trireme::cpu {

void swiglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y);
void swiglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);
void geglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y, Gelu form);
void geglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up, Gelu form);

void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y, Gelu form);
void gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dx, Gelu form);

}  // namespace trireme::cpu
