#include "kernels/cuda/cross_entropy.h"

#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

// Each block processes one row in vectors of N columns. A row may have 250,000 columns, so it does not stay in registers between passes.

namespace trireme::cuda {
namespace {

constexpr int kMostThreads = 1024;
constexpr int kRescaleThreads = 256;

/// Vectors in flight per thread: at most 16 values in registers.
template <int N>
constexpr int kUnroll = N >= 8 ? 2 : 4;

/// Calls vector(x, column) for the whole vectors in columns [0, columns) of a row and single(x, column) for the columns after them.
template <int N, class T, class Vector, class Single>
__device__ __forceinline__ void for_each_column(const T* row, int64_t columns, Vector&& vector, Single&& single) {
  const int64_t stride = int64_t{blockDim.x} * N;
  int64_t c = static_cast<int64_t>(threadIdx.x) * N;
  for (; c + stride * (kUnroll<N> - 1) + N <= columns; c += stride * kUnroll<N>) {
    Packed<T, N> packed[kUnroll<N>];
#pragma unroll
    for (int u = 0; u < kUnroll<N>; ++u) packed[u].load(row + c + u * stride);
#pragma unroll
    for (int u = 0; u < kUnroll<N>; ++u) {
      float x[N];
      packed[u].get(x);
      vector(x, c + u * stride);
    }
  }
  for (; c + N <= columns; c += stride) {
    float x[N];
    load_vector(row + c, x);
    vector(x, c);
  }
  // At most one thread has a last, partial vector.
  for (int64_t last = c; last < columns && last < c + N; ++last) single(to_float(row[last]), last);
}

/// Maximum of the values of one thread and the sum of their exponentials relative to it (online softmax).
struct OnlineSum {
  static constexpr float kLowest = -3.402823466e38F;  // finite, so that no exponent below is infinity - infinity; a row of -infinity has the sum 0

  float highest = kLowest;
  float parts[2] = {};  // two chains of additions

  template <int N>
  __device__ __forceinline__ void add(const float (&x)[N]) {
    float raised = highest;
#pragma unroll
    for (int i = 0; i < N; ++i) raised = fmaxf(raised, x[i]);
    const float factor = expf(highest - raised);  // 1 if the maximum stays
    highest = raised;
    parts[0] *= factor;
    parts[1] *= factor;
#pragma unroll
    for (int i = 0; i < N; ++i) parts[i % 2] += expf(x[i] - highest);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kMostThreads)
    sums_kernel(const T* __restrict__ logits, int64_t columns, int64_t valid, float* row_max, float* sums) {
  OnlineSum own;
  for_each_column<N>(
      logits + blockIdx.x * columns, valid, [&](const float(&x)[N], int64_t) { own.add(x); },
      [&](float x, int64_t) {
        const float values[1] = {x};
        own.add(values);
      });
  const float highest = block_max(own.highest, OnlineSum::kLowest);
  const float sum = block_sum((own.parts[0] + own.parts[1]) * expf(own.highest - highest));
  if (threadIdx.x != 0) return;
  const float reported = highest > OnlineSum::kLowest ? highest : -INFINITY;
  row_max[blockIdx.x] = reported;
  sums[blockIdx.x] = sum;
  sums[int64_t{gridDim.x} + blockIdx.x] = reported;
}

template <class T>
__global__ void __launch_bounds__(kRescaleThreads) rescale_kernel(const T* __restrict__ logits, const int32_t* __restrict__ targets, VocabRange range,
                                                                  int64_t columns, int64_t rows, const float* __restrict__ row_max, float* sums) {
  const int64_t row = thread_index();
  if (row >= rows) return;
  const float highest = row_max[row];
  const int32_t token = targets[row];
  const int64_t target = token - range.begin;
  const bool local = token >= 0 && target >= 0 && target < range.valid;
  sums[row] *= expf(sums[rows + row] - highest);
  sums[rows + row] = local ? to_float(logits[row * columns + target]) - highest : 0.0F;
}

__global__ void __launch_bounds__(kMostThreads)
    loss_kernel(const int32_t* __restrict__ targets, const float* __restrict__ sums, int64_t rows, double* loss_sum) {
  double loss = 0;
  for (int64_t m = threadIdx.x; m < rows; m += kMostThreads) {
    if (targets[m] >= 0) loss += log(static_cast<double>(sums[m])) - static_cast<double>(sums[rows + m]);
  }
  loss = block_sum(loss);
  if (threadIdx.x == 0) *loss_sum += loss;
}

template <class T, int N>
__global__ void __launch_bounds__(kMostThreads)
    backward_kernel(const int32_t* __restrict__ targets, VocabRange range, const float* __restrict__ row_max, const float* __restrict__ sums,
                    const double* __restrict__ scale, int64_t columns, T* logits) {
  T* const row = logits + blockIdx.x * columns;
  const int32_t token = targets[blockIdx.x];
  const int64_t step = int64_t{blockDim.x} * N;
  const float zeros[N] = {};
  if (token < 0) {
    for (int64_t c = static_cast<int64_t>(threadIdx.x) * N; c < columns; c += step) store_vector(row + c, columns - c, zeros);
    return;
  }
  const float highest = row_max[blockIdx.x], factor = static_cast<float>(*scale), share = 1 / sums[blockIdx.x];
  const int64_t target = token - range.begin;
  const auto gradient = [&](float x, int64_t column) { return (expf(x - highest) * share - (column == target ? 1.0F : 0.0F)) * factor; };
  for_each_column<N>(
      row, range.valid,
      [&](float(&x)[N], int64_t column) {
#pragma unroll
        for (int i = 0; i < N; ++i) x[i] = gradient(x[i], column + i);
        store_vector(row + column, x);
      },
      [&](float x, int64_t column) { row[column] = from_float<T>(gradient(x, column)); });
  for (int64_t c = range.valid + threadIdx.x; c < columns; c += blockDim.x) row[c] = from_float<T>(0);  // padding
}

/// Threads per row: whole warps, about one round of vectors in flight per thread.
template <int N>
int threads_of(int64_t columns) {
  const int64_t wanted = ceil_div(columns, int64_t{N} * kUnroll<N> * kWarp) * kWarp;
  return static_cast<int>(std::clamp<int64_t>(wanted, kWarp, columns > int64_t{1} << 16 ? kMostThreads : kMostThreads / 2));
}

/// Calls body(T{}, vector length, grid and block) for the dtype and row alignment of `logits`.
template <class Body>
void for_rows(const Tensor& logits, Body&& body) {
  const int64_t rows = logits.dim(0), columns = logits.dim(1);
  dispatch_gpu_float(logits.dtype(), [&]<class T>(T value) {
    const auto with = [&]<int N>(std::integral_constant<int, N> vector) {
      body(value, vector, Shape3{dim3(static_cast<unsigned>(rows)), dim3(static_cast<unsigned>(threads_of<N>(columns)))});
    };
    if (aligned_rows(columns, logits.data<T>())) return with(std::integral_constant<int, kVector<T>>{});
    with(std::integral_constant<int, 1>{});
  });
}

}  // namespace

void cross_entropy_sums(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max, const Tensor& sums) {
  for_rows(logits, [&]<class T, int N>(T, std::integral_constant<int, N>, const Shape3& shape) {
    launch(ctx, sums_kernel<T, N>, shape, logits.data<T>(), logits.dim(1), range.valid, row_max.data<float>(), sums.data<float>());
  });
}

void cross_entropy_rescale(Context& ctx, const Tensor& logits, const Tensor& targets, const VocabRange& range, const Tensor& row_max,
                           const Tensor& sums) {
  const int64_t rows = logits.dim(0);
  const Shape3 shape{dim3(static_cast<unsigned>(ceil_div(rows, kRescaleThreads))), dim3(kRescaleThreads)};
  dispatch_gpu_float(logits.dtype(), [&]<class T>(T) {
    launch(ctx, rescale_kernel<T>, shape, logits.data<T>(), targets.data<int32_t>(), range, logits.dim(1), rows, row_max.data<float>(),
           sums.data<float>());
  });
}

void cross_entropy_loss(Context& ctx, const Tensor& targets, const Tensor& sums, const Tensor& loss_sum) {
  launch(ctx, loss_kernel, {dim3(1), dim3(kMostThreads)}, targets.data<int32_t>(), sums.data<float>(), targets.dim(0), loss_sum.data<double>());
}

void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits) {
  for_rows(logits, [&]<class T, int N>(T, std::integral_constant<int, N>, const Shape3& shape) {
    launch(ctx, backward_kernel<T, N>, shape, targets.data<int32_t>(), range, row_max.data<float>(), sums.data<float>(), scale.data<double>(),
           logits.dim(1), logits.data<T>());
  });
}

}  // namespace trireme::cuda
