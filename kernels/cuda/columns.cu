#include "kernels/cuda/columns.h"

#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;

/// One thread per N elements, `row_accesses` threads per row. Strides are elements between rows.
template <class T, int N>
__global__ void __launch_bounds__(kBlock) copy_columns_kernel(const T* __restrict__ from, int64_t from_stride, T* __restrict__ to, int64_t to_stride,
                                                              uint32_t accesses, uint32_t row_accesses) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  if (access >= accesses) return;
  const int64_t row = access / row_accesses, column = int64_t{access % row_accesses} * N;
  Packed<T, N> values;
  values.load(from + row * from_stride + column);
  values.store(to + row * to_stride + column);
}

/// The same, adding to what `to` has.
template <class T, int N>
__global__ void __launch_bounds__(kBlock) add_columns_kernel(const T* __restrict__ from, int64_t from_stride, T* __restrict__ to, int64_t to_stride,
                                                             uint32_t accesses, uint32_t row_accesses) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  if (access >= accesses) return;
  const int64_t row = access / row_accesses, column = int64_t{access % row_accesses} * N;
  float values[N], sums[N];
  load_vector(from + row * from_stride + column, values);
  T* const target = to + row * to_stride + column;
  load_vector(target, sums);
#pragma unroll
  for (int i = 0; i < N; ++i) sums[i] += values[i];
  store_vector(target, sums);
}

/// `columns` columns of M rows, from the first one that each pointer names.
template <class T>
struct Columns {
  const T* from;
  int64_t from_stride;
  T* to;
  int64_t to_stride;
  int64_t rows, columns;

  /// Launches the kernel with the widest accesses that all rows allow.
  template <class Kernel>
  void run(Context& ctx, Kernel wide, Kernel narrow) const {
    if (columns == 0) return;
    const bool aligned = aligned_rows(from_stride, from) && aligned_rows(to_stride, to) && columns % kVector<T> == 0;
    const int64_t row_accesses = aligned ? columns / kVector<T> : columns;
    for_row_ranges(rows, row_accesses, [&](int64_t first, int64_t count) {
      launch(ctx, aligned ? wide : narrow, {dim3(static_cast<unsigned>(ceil_div(count * row_accesses, kBlock))), dim3(kBlock)},
             from + first * from_stride, from_stride, to + first * to_stride, to_stride, count * row_accesses, row_accesses);
    });
  }
};

}  // namespace

void copy_columns(Context& ctx, const Tensor& from, int64_t from_column, const Tensor& to, int64_t to_column, int64_t columns) {
  dispatch_gpu_float(from.dtype(), [&]<class T>(T) {
    const Columns<T> all{from.data<T>() + from_column, from.dim(1), to.data<T>() + to_column, to.dim(1), from.dim(0), columns};
    all.run(ctx, copy_columns_kernel<T, kVector<T>>, copy_columns_kernel<T, 1>);
  });
}

void add_columns(Context& ctx, const Tensor& x, const Tensor& to, int64_t first) {
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const Columns<T> all{x.data<T>(), x.dim(1), to.data<T>() + first, to.dim(1), x.dim(0), x.dim(1)};
    all.run(ctx, add_columns_kernel<T, kVector<T>>, add_columns_kernel<T, 1>);
  });
}

}  // namespace trireme::cuda
