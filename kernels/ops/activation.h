#pragma once
#include "kernels/core/gelu.h"
#include "kernels/core/tensor.h"

namespace trireme {

/// y = silu(gate) * up.   gate_up [M,2F]: a row is [gate F | up F]; y [M,F].   Source: Shazeer 2020, arXiv:2002.05202.
void swiglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y);
/// dy [M,F]; dgate_up [M,2F] is overwritten and may be gate_up.
void swiglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up);
/// y = GELU(gate) * up, with the operands of SwiGLU.   Source: the same.
void geglu_forward(Context& ctx, const Tensor& gate_up, const Tensor& y, Gelu form);
void geglu_backward(Context& ctx, const Tensor& dy, const Tensor& gate_up, const Tensor& dgate_up, Gelu form);

/// y = GELU(x).   x, y same shape; y may be x, dx may be dy.
void gelu_forward(Context& ctx, const Tensor& x, const Tensor& y, Gelu form);
void gelu_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dx, Gelu form);

}  // namespace trireme
