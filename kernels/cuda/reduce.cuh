#pragma once
// Sums and maxima over a warp or a block. The order of additions depends only on the block size, and every thread receives identical bits.
#include "kernels/cuda/device.cuh"

namespace trireme::cuda {

constexpr unsigned kAllLanes = 0xFFFFFFFFU;

/// Number is float, double, int or unsigned. All lanes must call.
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

/// Reduces each of the K `values` over the threads of one row of the block (one threadIdx.y). A row consists of whole warps, at most 1024 threads. A
/// block may have several rows only if each is one warp: then there is no barrier, otherwise all threads must call. Calls may follow directly.
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
/// `lowest` must not exceed any value.
template <class Number>
__device__ __forceinline__ Number block_max(Number value, Number lowest) {
  Number values[1] = {value};
  block_reduce(values, lowest, MaxOf{});
  return values[0];
}

}  // namespace trireme::cuda
