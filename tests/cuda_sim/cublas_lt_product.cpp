#include "tests/cuda_sim/cublas_lt_product.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"

namespace cuda_sim {
namespace {

using trireme::bfloat16;
using trireme::float16;

float read(const void* from, cudaDataType_t type, int64_t i) {
  if (type == CUDA_R_16BF) return static_cast<const bfloat16*>(from)[i];
  if (type == CUDA_R_16F) return static_cast<const float16*>(from)[i];
  return static_cast<const float*>(from)[i];
}
void write(void* to, cudaDataType_t type, int64_t i, float value) {
  if (type == CUDA_R_16BF) {
    static_cast<bfloat16*>(to)[i] = bfloat16(value);
  } else if (type == CUDA_R_16F) {
    static_cast<float16*>(to)[i] = float16(value);
  } else {
    static_cast<float*>(to)[i] = value;
  }
}

/// Rounds to 10 bits of mantissa, to nearest, ties away from zero.
float round_to_tf32(float value) { return std::isfinite(value) ? std::bit_cast<float>((std::bit_cast<uint32_t>(value) + 0x1000) & ~0x1FFFU) : value; }

float gelu(float x) { return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x))); }

/// Returns the stored matrix [rows, columns] in fp32, transposed if `transpose`.
std::vector<float> unpack(const void* from, cudaDataType_t type, bool tf32, int64_t rows, int64_t columns, int64_t ld, bool transpose) {
  std::vector<float> matrix(static_cast<size_t>(rows * columns));
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      const float value = read(from, type, c * ld + r);
      matrix[static_cast<size_t>(transpose ? r * columns + c : c * rows + r)] = tf32 ? round_to_tf32(value) : value;
    }
  }
  return matrix;
}

#pragma GCC push_options
#pragma GCC optimize("O3")
/// sums [m] += sum over k of a [k][m] b[k]
void add_products(float* __restrict__ sums, const float* __restrict__ a, const float* __restrict__ b, int64_t m, int64_t k) {
  for (int64_t i = 0; i < k; ++i, a += m) {
    const float factor = b[i];
    for (int64_t j = 0; j < m; ++j) sums[j] += a[j] * factor;
  }
}
#pragma GCC pop_options

}  // namespace

void compute(const Call& call) {
  const Problem& p = call.problem;
  const std::vector<float> a = unpack(call.a, p.in, p.tf32, p.transpose_a ? p.k : p.m, p.transpose_a ? p.m : p.k, p.lda, p.transpose_a);
  const std::vector<float> b = unpack(call.b, p.in, p.tf32, p.transpose_b ? p.n : p.k, p.transpose_b ? p.k : p.n, p.ldb, p.transpose_b);
  if (const uint64_t bytes = workspace_of(p, call.slices); bytes > 0) std::memset(call.workspace, 0xFF, bytes);
  std::vector<float> sums(static_cast<size_t>(p.m)), slice(sums.size());
  for (int64_t column = 0; column < p.n; ++column) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    for (int64_t s = 0; s < call.slices; ++s) {
      const int64_t begin = p.k * s / call.slices, end = p.k * (s + 1) / call.slices;
      std::fill(slice.begin(), slice.end(), 0.0f);
      add_products(slice.data(), a.data() + begin * p.m, b.data() + column * p.k + begin, p.m, end - begin);
      for (size_t row = 0; row < sums.size(); ++row) sums[row] += slice[row];
    }
    for (int64_t row = 0; row < p.m; ++row) {
      float value = call.alpha * sums[static_cast<size_t>(row)];
      if (call.beta != 0) value += call.beta * read(call.c, p.out, column * p.ldc + row);  // with beta = 0, c is not read and may contain anything
      if (p.has_bias()) value += read(call.bias, p.bias_type, row);
      if (p.has_gelu()) {
        write(call.aux, p.out, column * p.aux_ld + row, value);
        value = gelu(value);
      }
      write(call.d, p.out, column * p.ldd + row, value);
    }
  }
}

}  // namespace cuda_sim
