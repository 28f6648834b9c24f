#include "kernels/cuda/low_rank.h"

#include <cfloat>
#include <cmath>

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/ops/optimizer.h"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kColumnBlock = 512;  ///< threads of the block that makes columns orthonormal

/// Modified Gram-Schmidt by one block, each column twice, with sums in double (kernels/reference/low_rank.h). A thread owns every kColumnBlock-th row.
/// Single elements are fast enough: a factor has few columns.
__global__ void __launch_bounds__(kColumnBlock) orthonormalise_kernel(int64_t rows, int64_t rank, float* p) {
  constexpr double kRounding = 16 * static_cast<double>(FLT_EPSILON);
  const auto dot = [&](int64_t a, int64_t b) {
    double sum = 0;
    for (int64_t m = threadIdx.x; m < rows; m += kColumnBlock) sum += static_cast<double>(p[m * rank + a]) * static_cast<double>(p[m * rank + b]);
    return block_sum(sum);
  };
  for (int64_t j = 0; j < rank; ++j) {
    for (int pass = 0; pass < 2; ++pass) {
      const double before = sqrt(dot(j, j));
      for (int64_t k = 0; k < j; ++k) {
        const double along = dot(k, j);
        for (int64_t m = threadIdx.x; m < rows; m += kColumnBlock)
          p[m * rank + j] = static_cast<float>(static_cast<double>(p[m * rank + j]) - along * static_cast<double>(p[m * rank + k]));
      }
      const double norm = sqrt(dot(j, j));
      const bool depends = before <= DBL_MAX && norm <= kRounding * before;
      for (int64_t m = threadIdx.x; m < rows; m += kColumnBlock)
        p[m * rank + j] = depends ? 0.0F : static_cast<float>(static_cast<double>(p[m * rank + j]) / norm);
    }
  }
}

/// N > 1: every access lies within a row of the product.
template <int N>
__global__ void __launch_bounds__(kBlock)
    add_product_kernel(float scale, const float* p, const float* q, int64_t rank, int64_t columns, int64_t begin, int64_t count, float* out) {
  for (int64_t i = thread_index() * N; i < count; i += thread_count() * N) {
    const int64_t row = (begin + i) / columns, column = begin + i - row * columns;
    float sum[N] = {};
    for (int64_t k = 0; k < rank; ++k) {
      const float factor = p[row * rank + k];
      float basis[N];
      load_vector(q + k * columns + column, basis);
#pragma unroll
      for (int c = 0; c < N; ++c) sum[c] += factor * basis[c];
    }
    float value[N];
    load_vector(out + i, value);
#pragma unroll
    for (int c = 0; c < N; ++c) value[c] += scale * sum[c];
    store_vector(out + i, value);
  }
}

/// A block copies one row, if the step is accepted and the row is not zero.
__global__ void __launch_bounds__(kBlock) copy_rows_kernel(const double* scalars, int64_t columns, const float* from, float* to) {
  if (scalars[kAccepted] == 0) return;
  const int64_t first = int64_t{blockIdx.x} * columns;
  unsigned found = 0;
  for (int64_t c = threadIdx.x; c < columns; c += kBlock) found |= from[first + c] != 0 ? 1U : 0U;
  if (block_max(found, 0U) == 0) return;
  for (int64_t c = threadIdx.x; c < columns; c += kBlock) to[first + c] = from[first + c];
}

void check_single(const Tensor& tensor) {
  TRIREME_CHECK(tensor.dtype() == DType::kF32, "factors of gradients on a GPU are fp32, not ", name_of(tensor.dtype()));
}

}  // namespace

void orthonormalise(Context& ctx, const Tensor& p) {
  check_single(p);
  if (p.numel() > 0) launch(ctx, orthonormalise_kernel, {dim3(1), dim3(kColumnBlock)}, p.dim(0), p.dim(1), p.data<float>());
}

void add_product(Context& ctx, double scale, const Tensor& p, const Tensor& q, int64_t begin, const Tensor& out) {
  check_single(out);
  const int64_t count = out.numel(), columns = q.dim(1);
  if (count == 0) return;
  const auto queue = [&]<int N>(std::integral_constant<int, N>) {
    launch(ctx, add_product_kernel<N>, {stride_grid(ctx, ceil_div(count, N), kBlock), dim3(kBlock)}, scale, p.data<float>(), q.data<float>(),
           p.dim(1), columns, begin, count, out.data<float>());
  };
  constexpr int kWidth = kVector<float>;
  const bool vectors = aligned_rows(columns, q.data<float>()) && aligned_16(out.data<float>()) && begin % kWidth == 0 && count % kWidth == 0;
  if (vectors) return queue(std::integral_constant<int, kWidth>{});
  queue(std::integral_constant<int, 1>{});
}

void copy_nonzero_rows(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to) {
  check_single(to);
  if (to.numel() == 0) return;
  launch(ctx, copy_rows_kernel, {dim3(static_cast<unsigned>(to.dim(0))), dim3(kBlock)}, scalars.data<double>(), to.dim(1), from.data<float>(),
         to.data<float>());
}

}  // namespace trireme::cuda
