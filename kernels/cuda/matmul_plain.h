#pragma once
// Matrix product for any sizes, strides and alignments. It is used where cuBLASLt has no kernel: 16-bit rows with an odd number of elements.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

/// out[i,j] = sum_k left(i,k) right(k,j) + bias[j], or += if `accumulate`. Sums are in fp32, in order of k.
struct PlainProduct {
  int64_t rows, columns, depth;
  DType in, out_dtype;  ///< `in`: dtype of left, right and bias; `out_dtype`: the same, or fp32
  const void* left;     ///< left(i,k) at i * left_row + k * left_k
  int64_t left_row, left_k;
  const void* right;  ///< right(k,j) at j * right_column + k * right_k
  int64_t right_column, right_k;
  const void* bias;  ///< or null
  void* out;         ///< row-major
  bool accumulate;
};
void plain_product(const Context& ctx, const PlainProduct& product);

}  // namespace trireme::cuda
