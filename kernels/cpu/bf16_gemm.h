#pragma once
#include "kernels/core/tensor.h"

namespace trireme::cpu {

/// A row-major matrix, or its transpose.
struct MatrixOperand {
  const Tensor& matrix;
  bool transposed = false;
  int64_t stride() const { return matrix.dim(1); }
  int64_t rows() const { return matrix.dim(transposed ? 1 : 0); }
  int64_t columns() const { return matrix.dim(transposed ? 0 : 1); }
};

/// c [m,n] = a [m,k] b [k,n] + bias, or c += a b without a bias, with ctx.threads threads.   a, b, bias [n] (or undefined) bf16, c bf16 or fp32;
/// accumulates in fp32. Returns false, with c unchanged, if oneDNN has no such kernel for this CPU.
bool bf16_gemm(const Context& ctx, const MatrixOperand& a, const MatrixOperand& b, const Tensor& bias, bool accumulate, const Tensor& c);

}  // namespace trireme::cpu
