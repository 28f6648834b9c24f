// Each block computes a tile of 32 x 32 results, each thread 4 x 4 of them. Shared memory contains 32 steps of the sum at a time, in fp32.
#include "kernels/cuda/matmul_plain.h"

#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kTile = 32;
constexpr int kEach = 4;                                 // results per thread in each dimension
constexpr int kThreads = kTile * kTile / kEach / kEach;  // 8 x 8

struct Strides {
  int64_t row, k;
};

/// tile[k][row] = from(first_row + row, first_k + k), zero beyond `rows` and `depth`. Neighbouring threads read neighbouring elements.
template <class In>
__device__ void load_tile(float (&tile)[kTile][kTile + 1], const In* from, Strides strides, int64_t first_row, int64_t rows, int64_t first_k,
                          int64_t depth) {
  for (int i = static_cast<int>(threadIdx.x); i < kTile * kTile; i += kThreads) {
    const int fast = i % kTile, slow = i / kTile;
    const int row = strides.k == 1 ? slow : fast, k = strides.k == 1 ? fast : slow;
    const bool inside = first_row + row < rows && first_k + k < depth;
    tile[k][row] = inside ? to_float(from[(first_row + row) * strides.row + (first_k + k) * strides.k]) : 0.0f;
  }
}

template <class In, class Out>
__global__ void __launch_bounds__(kThreads) product_kernel(int64_t rows, int64_t columns, int64_t depth, const In* left, Strides left_strides,
                                                           const In* right, Strides right_strides, const In* bias, Out* out, bool accumulate) {
  TRIREME_SHARED(float[kTile][kTile + 1], left_tile);
  TRIREME_SHARED(float[kTile][kTile + 1], right_tile);
  const int64_t column_tiles = (columns + kTile - 1) / kTile;
  const int64_t first_row = blockIdx.x / column_tiles * kTile, first_column = blockIdx.x % column_tiles * kTile;
  const int row = static_cast<int>(threadIdx.x) / (kTile / kEach), column = static_cast<int>(threadIdx.x) % (kTile / kEach);
  float sums[kEach][kEach] = {};
  for (int64_t first_k = 0; first_k < depth; first_k += kTile) {
    load_tile(left_tile, left, left_strides, first_row, rows, first_k, depth);
    load_tile(right_tile, right, right_strides, first_column, columns, first_k, depth);
    __syncthreads();
    for (int k = 0; k < kTile; ++k) {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
#pragma unroll
        for (int j = 0; j < kEach; ++j) {
          sums[i][j] = fmaf(left_tile[k][row + i * (kTile / kEach)], right_tile[k][column + j * (kTile / kEach)], sums[i][j]);
        }
      }
    }
    __syncthreads();  // before the tiles are overwritten
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const int64_t r = first_row + row + i * (kTile / kEach), c = first_column + column + j * (kTile / kEach);
      if (r >= rows || c >= columns) continue;
      float sum = sums[i][j];
      if (bias != nullptr) sum += to_float(bias[c]);
      if (accumulate) sum += to_float(out[r * columns + c]);
      out[r * columns + c] = from_float<Out>(sum);
    }
  }
}

template <class In, class Out>
void run(const Context& ctx, const PlainProduct& p) {
  const int64_t tiles = ceil_div(p.rows, kTile) * ceil_div(p.columns, kTile);
  TRIREME_CHECK(tiles < (int64_t{1} << 31), "a product of [", p.rows, ", ", p.columns, "] is too large");
  launch(ctx, product_kernel<In, Out>, {dim3(static_cast<unsigned>(tiles)), dim3(kThreads)}, p.rows, p.columns, p.depth,
         static_cast<const In*>(p.left), Strides{p.left_row, p.left_k}, static_cast<const In*>(p.right), Strides{p.right_column, p.right_k},
         static_cast<const In*>(p.bias), static_cast<Out*>(p.out), p.accumulate);
}

}  // namespace

void plain_product(const Context& ctx, const PlainProduct& product) {
  dispatch_gpu_float(product.in, [&]<class T>(T) {
    if (product.out_dtype == product.in) return run<T, T>(ctx, product);
    TRIREME_CHECK(product.out_dtype == DType::kF32, "unsupported output dtype of a product: ", name_of(product.out_dtype));
    run<T, float>(ctx, product);
  });
}

}  // namespace trireme::cuda
