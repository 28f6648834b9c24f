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

}  // namespace

void copy_columns(Context& ctx, const Tensor& from, int64_t from_column, const Tensor& to, int64_t to_column, int64_t columns) {
  if (columns == 0) return;
  const int64_t from_stride = from.dim(1), to_stride = to.dim(1);
  dispatch_gpu_float(from.dtype(), [&]<class T>(T) {
    const T* const source = from.data<T>() + from_column;
    T* const target = to.data<T>() + to_column;
    const bool aligned = aligned_rows(from_stride, source) && aligned_rows(to_stride, target) && columns % kVector<T> == 0;
    const int64_t row_accesses = aligned ? columns / kVector<T> : columns;
    const auto kernel = aligned ? copy_columns_kernel<T, kVector<T>> : copy_columns_kernel<T, 1>;
    for_row_ranges(from.dim(0), row_accesses, [&](int64_t first, int64_t count) {
      launch(ctx, kernel, {dim3(static_cast<unsigned>(ceil_div(count * row_accesses, kBlock))), dim3(kBlock)}, source + first * from_stride,
             from_stride, target + first * to_stride, to_stride, count * row_accesses, row_accesses);
    });
  });
}

}  // namespace trireme::cuda
