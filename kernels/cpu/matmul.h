#pragma once
// kernels/ops/matmul.h by oneDNN, bound to ctx.threads: in fp32, and in bf16 where ctx.isa has its dot products. All else that is narrow, fp16 always, is
// widened piece by piece and multiplied in fp32.
#include <string>

#include "kernels/core/tensor.h"

namespace trireme::cpu {

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y);
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw);

/// Keeps the library to the instructions of `isa`, in the whole process and from before its first product on: what it does by itself is the best of this CPU.
/// Errors: InternalError where it was used before with others.
void limit_library(Isa isa);

std::string gemm_library();

}  // namespace trireme::cpu
