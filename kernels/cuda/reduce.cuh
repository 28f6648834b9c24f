#pragma once
// Sums and maxima over a warp or a block. The order of additions is fixed by the size of the block, and every thread receives the same bits.
#include "kernels/cuda/device.cuh"

namespace trireme::cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Number is float, double, int or unsigned. All lanes take part.
template <class Number>
__device__ __forceinline__ Number warp_sum(Number value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) value += __shfl_xor_sync(kAllLanes, value, distance);
  return value;
}

template <class Number>
__device__ __forceinline__ Number warp_max(Number value) {
#pragma unroll
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    const Number other = __shfl_xor_sync(kAllLanes, value, distance);
    value = other > value ? other : value;
  }
  return value;
}

struct SumOf {
  template <class Number>
  __device__ __forceinline__ Number operator()(Number value) const {
    return warp_sum(value);
  }
};
struct MaxOf {
  template <class Number>
  __device__ __forceinline__ Number operator()(Number value) const {
    return warp_max(value);
  }
};

/// `values[k]` over the threads of a row of the block (one threadIdx.y), for each of K at once. A row is whole warps, 1024 threads at most, and the block has
/// several rows only if each is one warp: then there is no barrier, else all threads must call. May be called again at once.
template <int K, class Number, class Reduce>
__device__ __forceinline__ void block_reduce(Number (&values)[K], Number neutral, Reduce reduce) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int warps = static_cast<int>(blockDim.x) / kWarp;
#pragma unroll
  for (int k = 0; k < K; ++k) values[k] = reduce(values[k]);
  if (warps == 1) return;
  TRIREME_SHARED(Number[K][kWarp], partial);
  if (lane == 0) {
#pragma unroll
    for (int k = 0; k < K; ++k) partial[k][warp] = values[k];
  }
  __syncthreads();
#pragma unroll
  for (int k = 0; k < K; ++k) values[k] = reduce(lane < warps ? partial[k][lane] : neutral);
  __syncthreads();  // before the next call writes `partial`
}

template <int K, class Number>
__device__ __forceinline__ void block_sum(Number (&values)[K]) {
  block_reduce(values, Number{0}, SumOf{});
}
template <class Number>
__device__ __forceinline__ Number block_sum(Number value) {
  Number values[1] = {value};
  block_reduce(values, Number{0}, SumOf{});
  return values[0];
}
/// `lowest` is at most every value.
template <class Number>
__device__ __forceinline__ Number block_max(Number value, Number lowest) {
  Number values[1] = {value};
  block_reduce(values, lowest, MaxOf{});
  return values[0];
}

}  // namespace trireme::cuda
