#pragma once
#include "kernels/core/tensor.h"

namespace trireme::cpu {

/// A row-major matrix, or its transpose.
struct MatrixOperand {
  const Tensor& matrix;
  bool transposed = false;
  int64_t stride() const { return matrix.dim(1); }
};

/// c [m,n] = a [m,k] b [k,n], or c += with `accumulate`.   a, b bf16, c bf16 or fp32, products summed in fp32, by ctx.threads threads.
/// On a CPU without bf16 instructions for which oneDNN has no such product, a and b are widened and multiplied in fp32.
void bf16_gemm(const Context& ctx, const MatrixOperand& a, const MatrixOperand& b, int64_t m, int64_t n, int64_t k, bool accumulate, const Tensor& c);

}  // namespace trireme::cpu
