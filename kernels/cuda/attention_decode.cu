// Attention of single queries over a key/value cache that is a ring of rows. Each warp processes every eighth key with its own running maximum, each
// lane every 32nd element of the head. The warps' results are then combined in warp order.
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kWarps = 8;
constexpr int kElements = kPlainHeadSize / kWarp;  // per lane

/// Block (x, y): query head x of row y.
template <class T>
__global__ void __launch_bounds__(kWarps* kWarp)
    decode_kernel(const T* __restrict__ qkv, const T* __restrict__ keys, const T* __restrict__ values, int64_t room, int64_t position,
                  AttentionBand<int64_t> band, AttentionLayout layout, T* out) {
  TRIREME_SHARED(float[kWarps][kPlainHeadSize], sums);
  TRIREME_SHARED(float[kWarps], highest);
  TRIREME_SHARED(float[kWarps], denominators);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int head = static_cast<int>(blockIdx.x), size = layout.head_size;
  const int64_t row = blockIdx.y, token = position + row, kv = int64_t{head / layout.group} * size;
  float query[kElements], sum[kElements];
#pragma unroll
  for (int i = 0; i < kElements; ++i) {
    const int h = lane + i * kWarp;
    query[i] = h < size ? to_float(qkv[row * layout.columns + head * size + h]) * layout.scale : 0.0F;
    sum[i] = 0;
  }
  float largest = -INFINITY, denominator = 0;
  for (int64_t key = band.first_key(token) + warp; key <= token; key += kWarps) {
    const int64_t at = key % room * layout.to_values + kv;
    const T* const k = keys + at;
    float score = 0;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (lane + i * kWarp < size) score = fmaf(query[i], to_float(k[lane + i * kWarp]), score);
    }
    score = warp_sum(score);
    const float before = largest;
    largest = score > before ? score : before;
    const float factor = expf(before - largest), weight = expf(score - largest);  // at the first key the factor is 0
    denominator = denominator * factor + weight;
    const T* const v = values + at;
#pragma unroll
    for (int i = 0; i < kElements; ++i) {
      if (lane + i * kWarp < size) sum[i] = fmaf(weight, to_float(v[lane + i * kWarp]), sum[i] * factor);
    }
  }
#pragma unroll
  for (int i = 0; i < kElements; ++i) sums[warp][lane + i * kWarp] = sum[i];
  if (lane == 0) highest[warp] = largest, denominators[warp] = denominator;
  __syncthreads();
  largest = highest[0];  // the first warp always has a key; warps without keys add 0
  for (int w = 1; w < kWarps; ++w) largest = highest[w] > largest ? highest[w] : largest;
  denominator = 0;
  for (int w = 0; w < kWarps; ++w) denominator += denominators[w] * expf(highest[w] - largest);
  for (int h = static_cast<int>(threadIdx.x); h < size; h += kWarps * kWarp) {
    float total = 0;
    for (int w = 0; w < kWarps; ++w) total += sums[w][h] * expf(highest[w] - largest);
    out[row * layout.out_columns + head * size + h] = from_float<T>(total / denominator);
  }
}

}  // namespace

void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out) {
  if (shape.head_size > kPlainHeadSize)
    throw InternalError(concat("attention_decode: head size ", shape.head_size, " exceeds the GPU kernels' maximum of ", kPlainHeadSize));
  constexpr int64_t kRows = 65535;  // maximum gridDim.y
  TRIREME_CHECK(shape.sequence <= kRows, "attention_decode: ", shape.sequence, " new tokens exceed the maximum of ", kRows);
  dispatch_gpu_float(qkv.dtype(), [&]<class T>(T) {
    launch(ctx, decode_kernel<T>, {dim3(static_cast<unsigned>(shape.heads), static_cast<unsigned>(shape.sequence)), dim3(kWarps * kWarp)},
           qkv.data<T>(), keys.data<T>(), values.data<T>(), keys.dim(0), position, shape.band(), AttentionLayout(shape), out.data<T>());
  });
}

}  // namespace trireme::cuda
