#pragma once
// A matrix product for one head of attention, on one thread. At these sizes (a block of 32 rows against up to a few hundred keys, H of 32 to 128) a
// library call spends more on setting up (50 us measured for dnnl_sgemm) than the product takes.
#include <cstdint>

namespace trireme::cpu {

/// Columns come in vectors of 16 floats.
constexpr int64_t kGemmColumns = 16;
constexpr int64_t round_up(int64_t extent) { return (extent + kGemmColumns - 1) / kGemmColumns * kGemmColumns; }
/// A row stride of an odd number of cache lines: walking down a column then visits every set of the L1 cache, not a few.
constexpr int64_t odd_stride(int64_t extent) { return round_up(extent) / kGemmColumns % 2 == 1 ? round_up(extent) : round_up(extent) + kGemmColumns; }

/// Element (i, j) at data[i * row + j * column].
struct StridedMatrix {
  const float* data;
  int64_t row;
  int64_t column;
};

using FloatVector = float __attribute__((vector_size(32), aligned(4), may_alias));

/// c [kRows,16] (+)= a [kRows,k] b [k,16], the sums in registers.
template <int kRows>
inline void gemm_tile(int64_t k, const StridedMatrix& a, const float* b, int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  FloatVector sum[kRows][2];
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) sum[r][v] = accumulate ? *reinterpret_cast<FloatVector*>(c + r * c_stride + 8 * v) : FloatVector{};
  }
  for (int64_t p = 0; p < k; ++p) {
    const FloatVector b0 = *reinterpret_cast<const FloatVector*>(b + p * b_stride);
    const FloatVector b1 = *reinterpret_cast<const FloatVector*>(b + p * b_stride + 8);
    for (int r = 0; r < kRows; ++r) {
      const float factor = a.data[r * a.row + p * a.column];
      sum[r][0] += factor * b0;
      sum[r][1] += factor * b1;
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < 2; ++v) *reinterpret_cast<FloatVector*>(c + r * c_stride + 8 * v) = sum[r][v];
  }
}

/// c [m,n] = a [m,k] b [k,n], or c += with `accumulate`; b and c row-major at their strides, n a multiple of 16.
inline void small_gemm(int64_t m, int64_t n, int64_t k, const StridedMatrix& a, const float* b, int64_t b_stride, float* c, int64_t c_stride,
                       bool accumulate) {
  constexpr int kRows = 4;  // with two vectors of columns: eight independent sums, the latency of FMA times its two ports
  for (int64_t j = 0; j < n; j += kGemmColumns) {
    int64_t i = 0;
    for (; i + kRows <= m; i += kRows) {
      gemm_tile<kRows>(k, {a.data + i * a.row, a.row, a.column}, b + j, b_stride, c + i * c_stride + j, c_stride, accumulate);
    }
    for (; i < m; ++i) gemm_tile<1>(k, {a.data + i * a.row, a.row, a.column}, b + j, b_stride, c + i * c_stride + j, c_stride, accumulate);
  }
}

}  // namespace trireme::cpu
