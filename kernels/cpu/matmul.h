#pragma once
// CPU kernels of kernels/ops/matmul.h, by oneDNN with ctx.threads threads: in fp32, and in bf16 if ctx.isa has bf16 dot products. Other 16-bit
// operands (fp16 always) are converted to fp32 piece by piece and multiplied in fp32.
#include <string>

#include "kernels/core/tensor.h"

namespace trireme::cpu {

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y);
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw, bool add);

/// Limits oneDNN to the instructions of `isa`, in the whole process; its default is the best level of this CPU. Call before the first matrix product.
/// Errors: InternalError if oneDNN was already used with another limit.
void limit_library(Isa isa);

std::string gemm_library();

}  // namespace trireme::cpu
