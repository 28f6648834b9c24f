// Bias of kernels/cuda/matmul.h for products that cannot add it as an epilogue. Each thread owns N columns and iterates over rows.
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kWarps = 8;         // per block; each processes every eighth row
constexpr int kRowsInFlight = 4;  // loads per thread before it adds

template <class T, int N>
__global__ void __launch_bounds__(kWarps* kWarp) bias_kernel(const T* __restrict__ bias, T* y, int64_t rows, int64_t columns) {
  const int64_t column = (int64_t{blockIdx.x} * kWarp + threadIdx.x) * N;
  if (column >= columns) return;
  float b[N];
  load_vector(bias + column, b);
  const int64_t stride = int64_t{gridDim.y} * kWarps;
  int64_t row = int64_t{blockIdx.y} * kWarps + threadIdx.y;
  for (; row + stride * (kRowsInFlight - 1) < rows; row += stride * kRowsInFlight) {
    Packed<T, N> packed[kRowsInFlight];
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) packed[r].load(y + (row + r * stride) * columns + column);
#pragma unroll
    for (int r = 0; r < kRowsInFlight; ++r) {
      float value[N];
      packed[r].get(value);
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] += b[i];
      store_vector(y + (row + r * stride) * columns + column, value);
    }
  }
  for (; row < rows; row += stride) {
    float value[N];
    load_vector(y + row * columns + column, value);
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] += b[i];
    store_vector(y + row * columns + column, value);
  }
}

/// out[slice, column] = sum of x over the rows from slice * rows_each on (+= if kAdd). blockIdx.y is the slice. Each warp sums every eighth row, then
/// the warps' sums are added in order.
template <class T, int N, bool kAdd>
__global__ void __launch_bounds__(kWarps* kWarp) column_sums(const T* __restrict__ x, int64_t rows, int64_t rows_each, int64_t columns, float* out) {
  constexpr int kColumns = kWarp * N;
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int64_t first_column = int64_t{blockIdx.x} * kColumns, column = first_column + lane * N;
  const int64_t begin = blockIdx.y * rows_each, end = begin + rows_each < rows ? begin + rows_each : rows;
  float sums[N] = {};
  if (column < columns) {
    int64_t row = begin + warp;
    for (; row + kWarps * (kRowsInFlight - 1) < end; row += kWarps * kRowsInFlight) {
      Packed<T, N> packed[kRowsInFlight];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) packed[r].load(x + (row + r * kWarps) * columns + column);
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        float value[N];
        packed[r].get(value);
#pragma unroll
        for (int i = 0; i < N; ++i) sums[i] += value[i];
      }
    }
    for (; row < end; row += kWarps) {
      float value[N];
      load_vector(x + row * columns + column, value);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += value[i];
    }
  }
  TRIREME_SHARED(float[kWarps][padded(kColumns)], of_warps);
#pragma unroll
  for (int i = 0; i < N; ++i) of_warps[warp][padded(lane * N + i)] = sums[i];
  __syncthreads();
  const int own = warp * kWarp + lane;
  if (own >= kColumns || first_column + own >= columns) return;
  float sum = 0;
#pragma unroll
  for (int other = 0; other < kWarps; ++other) sum += of_warps[other][padded(own)];
  float& result = out[blockIdx.y * columns + first_column + own];
  result = kAdd ? result + sum : sum;
}

template <bool kAdd, class T>
void sum_columns(const Context& ctx, const T* x, int64_t rows, int64_t rows_each, int64_t columns, float* out) {
  const bool aligned = aligned_rows(columns, x);
  const auto blocks = static_cast<unsigned>(ceil_div(columns, kWarp * (aligned ? kVector<T> : 1)));
  const auto kernel = aligned ? column_sums<T, kVector<T>, kAdd> : column_sums<T, 1, kAdd>;
  launch(ctx, kernel, {dim3(blocks, static_cast<unsigned>(ceil_div(rows, rows_each))), dim3(kWarp, kWarps)}, x, rows, rows_each, columns, out);
}

/// Rows per slice of the first pass: enough slices to fill the GPU, few enough that their sums are cheap to add and fit in the scratch memory.
int64_t rows_of_slice(int64_t rows, int64_t columns) {
  constexpr int64_t kLeast = 128;
  const int64_t slices = Gpu::kScratchBytes / (columns * static_cast<int64_t>(sizeof(float)));
  TRIREME_CHECK(slices > 0, "a bias does not fit in the scratch memory: columns = ", columns);
  return std::max(kLeast, ceil_div(rows, std::min<int64_t>(slices, 65535)));
}

}  // namespace

void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  dispatch_gpu_float(y.dtype(), [&]<class T>(T) {
    const T* const b = bias.data<T>();
    T* const out = y.data<T>();
    const bool aligned = aligned_rows(columns, b, out);
    const int64_t column_blocks = ceil_div(columns, kWarp * (aligned ? kVector<T> : 1));
    const int64_t row_blocks = std::min<int64_t>(ceil_div(rows, kWarps * kRowsInFlight), 65535);
    const auto kernel = aligned ? bias_kernel<T, kVector<T>> : bias_kernel<T, 1>;
    launch(ctx, kernel, {dim3(static_cast<unsigned>(column_blocks), static_cast<unsigned>(row_blocks)), dim3(kWarp, kWarps)}, b, out, rows, columns);
  });
}

void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  if (rows == 0 || columns == 0) return;
  const int64_t rows_each = rows_of_slice(rows, columns), slices = ceil_div(rows, rows_each);
  dispatch_gpu_float(dy.dtype(), [&]<class T>(T) {
    if (slices == 1) return sum_columns<true>(ctx, dy.data<T>(), rows, rows, columns, dbias.data<float>());
    auto* const partial = static_cast<float*>(ctx.gpu->scratch(slices * columns * static_cast<int64_t>(sizeof(float))));
    sum_columns<false>(ctx, dy.data<T>(), rows, rows_each, columns, partial);
    sum_columns<true>(ctx, static_cast<const float*>(partial), slices, slices, columns, dbias.data<float>());
  });
}

}  // namespace trireme::cuda
