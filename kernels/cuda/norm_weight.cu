#include "kernels/cuda/norm.h"
#include "kernels/cuda/vector.cuh"

// Parameter gradients of the norms in two passes: each block sums its columns over a slice of the rows, then the sums of the slices are added in
// order. Both orders of addition depend only on the shape.

namespace trireme::cuda {
namespace {

constexpr int kWarps = 8;          // per block; each processes every eighth row of the slice
constexpr int kRowsInFlight = 4;   // loads per thread before it adds
constexpr int64_t kBlocks = 1024;  // target for the first pass: a few per multiprocessor
constexpr int64_t kMostSlices = 256;

/// Partition of the rows into `count` slices of `rows_each` rows.
struct Slices {
  int64_t count, rows_each;
};

/// partial[slice, k, column]: k = 0 the sum of dy * (x - mean) * rstd, k = 1 (LayerNorm) that of dy.
template <class T, int N, bool kCentred>
__global__ void __launch_bounds__(kWarps* kWarp)
    sum_slices(const T* __restrict__ dy, const T* __restrict__ x, const float* __restrict__ mean, const float* __restrict__ rstd, float* partial,
               int64_t rows, int64_t rows_each, int columns) {
  constexpr int kSums = kCentred ? 2 : 1, kColumns = kWarp * N;
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kColumns + lane * N;
  const int64_t begin = blockIdx.y * rows_each, end = begin + rows_each < rows ? begin + rows_each : rows;
  float sums[kSums][N] = {};
  if (column < columns) {
    for (int64_t first = begin + warp; first < end; first += kWarps * kRowsInFlight) {
      Packed<T, N> gradients[kRowsInFlight], values[kRowsInFlight];
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int64_t row = first + r * kWarps;
        if (row >= end) continue;
        gradients[r].load(dy + row * columns + column);
        values[r].load(x + row * columns + column);
      }
#pragma unroll
      for (int r = 0; r < kRowsInFlight; ++r) {
        const int64_t row = first + r * kWarps;
        if (row >= end) continue;
        const float scale = rstd[row], center = kCentred ? mean[row] : 0;
        float g[N], v[N];
        gradients[r].get(g);
        values[r].get(v);
#pragma unroll
        for (int i = 0; i < N; ++i) {
          sums[0][i] = fmaf(g[i], (v[i] - center) * scale, sums[0][i]);
          if constexpr (kCentred) sums[1][i] += g[i];
        }
      }
    }
  }
  TRIREME_SHARED(float[kSums][kWarps][padded(kColumns)], of_warps);
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
#pragma unroll
    for (int i = 0; i < N; ++i) of_warps[k][warp][padded(lane * N + i)] = sums[k][i];
  }
  __syncthreads();
  const int own = warp * kWarp + lane, own_column = static_cast<int>(blockIdx.x) * kColumns + own;
  if (own >= kColumns || own_column >= columns) return;
#pragma unroll
  for (int k = 0; k < kSums; ++k) {
    float sum = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) sum += of_warps[k][other][padded(own)];
    partial[(int64_t{blockIdx.y} * kSums + k) * columns + own_column] = sum;
  }
}

/// out[column] += sum over the slices: each warp sums every eighth slice, then the warps' sums are added in order. blockIdx.y selects the output.
__global__ void __launch_bounds__(kWarps* kWarp) add_slices(const float* __restrict__ partial, int64_t slices, int columns, float* dw, float* db) {
  const int lane = static_cast<int>(threadIdx.x), warp = static_cast<int>(threadIdx.y);
  const int column = static_cast<int>(blockIdx.x) * kWarp + lane;
  float sum = 0;
  if (column < columns) {
#pragma unroll 4
    for (int64_t slice = warp; slice < slices; slice += kWarps) sum += partial[(slice * gridDim.y + blockIdx.y) * columns + column];
  }
  TRIREME_SHARED(float[kWarps][kWarp], of_warps);
  of_warps[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || column >= columns) return;
  for (int other = 1; other < kWarps; ++other) sum += of_warps[other][lane];
  (blockIdx.y == 0 ? dw : db)[column] += sum;
}

Slices choose_slices(int64_t rows, int64_t column_blocks, int64_t slice_bytes) {
  const int64_t fitting = Gpu::kScratchBytes / slice_bytes;
  TRIREME_CHECK(fitting > 0, "norm: gradients of ", slice_bytes, " bytes do not fit in the scratch memory");
  const int64_t filling = std::min({ceil_div(kBlocks, column_blocks), kMostSlices, fitting});
  const int64_t rows_each = std::max<int64_t>(ceil_div(rows, filling), kWarps * kRowsInFlight);
  return {ceil_div(rows, rows_each), rows_each};
}

/// mean and db are undefined for RMSNorm.
template <bool kCentred>
void backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw, const Tensor& db) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  if (rows == 0 || columns == 0) return;
  constexpr int64_t kSums = kCentred ? 2 : 1;
  dispatch_gpu_float(x.dtype(), [&]<class T>(T) {
    const T *gradients = dy.data<T>(), *values = x.data<T>();
    const bool aligned = aligned_rows(columns, gradients, values);
    const int64_t column_blocks = ceil_div(columns, kWarp * (aligned ? kVector<T> : 1));
    const int64_t slice_bytes = kSums * columns * static_cast<int64_t>(sizeof(float));
    const Slices slices = choose_slices(rows, column_blocks, slice_bytes);
    auto* partial = static_cast<float*>(ctx.gpu->scratch(slices.count * slice_bytes));
    const auto kernel = aligned ? sum_slices<T, kVector<T>, kCentred> : sum_slices<T, 1, kCentred>;
    launch(ctx, kernel, {dim3(static_cast<unsigned>(column_blocks), static_cast<unsigned>(slices.count)), dim3(kWarp, kWarps)}, gradients, values,
           kCentred ? mean.data<float>() : nullptr, rstd.data<float>(), partial, rows, slices.rows_each, columns);
    launch(ctx, add_slices, {dim3(static_cast<unsigned>(ceil_div(columns, kWarp)), kSums), dim3(kWarp, kWarps)}, partial, slices.count, columns,
           dw.data<float>(), kCentred ? db.data<float>() : nullptr);
  });
}

}  // namespace

void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
  backward_weight<false>(ctx, dy, x, {}, rstd, dw, {});
}

void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db) {
  backward_weight<true>(ctx, dy, x, mean, rstd, dw, db);
}

}  // namespace trireme::cuda
