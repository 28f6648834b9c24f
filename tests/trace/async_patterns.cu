#include "tests/trace/async_patterns.h"

#include "kernels/cuda/vector.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace async_patterns {
namespace {

using namespace trireme::cuda;

constexpr int kPanelBytes = 64 * kPanelRowBytes;

__device__ void write_operands(const float* x, unsigned char* shared, bool by_copies, Lack lack, unsigned thread, unsigned threads) {
  for (int i = static_cast<int>(thread); i < 2 * kPanelBytes / 16; i += static_cast<int>(threads)) {
    const float* const from = x + i % (kPanelBytes / 16) * 4;
    if (by_copies)
      cp_async_16(shared + i * 16, from, true);
    else
      store_words(shared + i * 16, load_words<uint4>(from));
  }
  cp_async_commit();
  if (lack != Lack::kCopyWait) cp_async_wait<0>();
}

/// A barrier of all threads of the block.
__device__ void barrier(bool named) {
  if (named)
    barrier_sync(1, static_cast<int>(blockDim.x));
  else
    __syncthreads();
}

__device__ void store_results(float* d, const float (&sums)[8][4]) {
  for (int i = 0; i < 32; ++i) d[threadIdx.x * 32 + static_cast<unsigned>(i)] = sums[i / 4][i % 4];
}

__global__ void operands_kernel(const float* x, float* d, Lack lack, bool by_copies, bool named) {
  TRIREME_DYNAMIC_SHARED(unsigned char, shared);
  const unsigned thread = threadIdx.x;
  const bool multiplies = thread < 128;
  if (lack == Lack::kProxyFenceFirst) fence_proxy_async();
  write_operands(x, shared, by_copies, lack, thread, blockDim.x);
  if (lack == Lack::kOneProxyFence ? thread == 0 : lack != Lack::kProxyFence && lack != Lack::kProxyFenceFirst) fence_proxy_async();
  if (lack != Lack::kBarrier) barrier(named);
  float sums[8][4];
  if (multiplies) {
    const uint32_t at = shared_address(shared);
    wgmma_fence();
    wgmma<trireme::bfloat16, 64, false, true>(sums, wgmma_operand(at), wgmma_operand(at + kPanelBytes), false);
    if (lack != Lack::kCommit) wgmma_commit();
    if (lack == Lack::kWaitForAll) wgmma_wait<1>();
    if (lack != Lack::kWait && lack != Lack::kWaitForAll) wgmma_wait<0>();
  }
  if (lack != Lack::kBarrierAfterWait && lack != Lack::kOwnWarpgroup) barrier(named);
  if (multiplies || lack != Lack::kOwnWarpgroup) write_operands(x, shared, by_copies, Lack::kNothing, thread, blockDim.x);
  if (multiplies) {
    if (lack == Lack::kCommit) wgmma_commit();
    wgmma_wait<0>();
    store_results(d, sums);
  }
}

__global__ void passed_operands_kernel(const float* x, float* d, Lack lack, bool by_copies) {
  TRIREME_DYNAMIC_SHARED(unsigned char, shared);
  const unsigned thread = threadIdx.x, other = thread - 128;
  const bool last_warp = thread >= 96;
  const int first = lack == Lack::kWarpBefore ? 224 : 256, second = lack == Lack::kWarpAfterWait ? 224 : 256;
  if (thread >= 128) {
    if (lack == Lack::kProxyFenceFirst) fence_proxy_async();
    write_operands(x, shared, by_copies, lack, other, 128);
    if (lack != Lack::kProxyFence && lack != Lack::kProxyFenceFirst && lack != Lack::kProxyFenceLate) fence_proxy_async();
    if (lack != Lack::kBarrier) barrier_arrive(1, first);
    if (lack == Lack::kProxyFenceLate) fence_proxy_async();
    if (lack != Lack::kBarrierAfterWait) barrier_sync(2, second);
    write_operands(x, shared, by_copies, Lack::kNothing, other, 128);
    return;
  }
  if (lack != Lack::kBarrier && (lack != Lack::kWarpBefore || !last_warp)) barrier_sync(1, first);
  float sums[8][4];
  const uint32_t at = shared_address(shared);
  wgmma_fence();
  wgmma<trireme::bfloat16, 64, false, true>(sums, wgmma_operand(at), wgmma_operand(at + kPanelBytes), false);
  wgmma_commit();
  if (lack != Lack::kWait) wgmma_wait<0>();
  if (lack != Lack::kBarrierAfterWait && (lack != Lack::kWarpAfterWait || !last_warp)) barrier_arrive(2, second);
  wgmma_wait<0>();
  store_results(d, sums);
}

__device__ void start(float* x, const float* shared, bool add) {
  if (add)
    bulk_add(x, shared, 256);
  else
    bulk_store(x, shared, 256);
}

__global__ void bulk_kernel(float* x, bool add, Lack lack, bool named) {
  TRIREME_DYNAMIC_SHARED(float, shared);
  const unsigned thread = threadIdx.x;
  if (lack == Lack::kProxyFenceFirst) fence_proxy_async();
  shared[thread] = 1;
  if (lack == Lack::kOneProxyFence ? thread == 0 : lack != Lack::kProxyFence && lack != Lack::kProxyFenceFirst) fence_proxy_async();
  if (lack != Lack::kBarrier) barrier(named);
  if (thread == 0) {
    start(x, shared, add);
    if (lack != Lack::kCommit) bulk_commit();
    if (lack != Lack::kWait) bulk_wait<0>();
  }
  if (lack != Lack::kBarrierAfterWait && lack != Lack::kOwnWarpgroup) barrier(named);
  if (lack != Lack::kOwnWarpgroup)
    shared[thread ^ 32] = 2;
  else if (thread == 0)
    shared[63] = 2;
  if (thread == 0) {
    bulk_commit();
    bulk_wait<0>();
  }
}

__global__ void bulk_of_warp_kernel(float* x) {
  TRIREME_SHARED(float4[16], values);
  auto* const shared = reinterpret_cast<float*>(values);
  const unsigned lane = threadIdx.x;
  shared[lane] = shared[lane + 32] = 1;
  fence_proxy_async();
  __syncwarp();
  if (lane == 0) {
    bulk_add(x, shared, 256);
    bulk_commit();
    bulk_wait<0>();
  }
  __syncwarp();
  shared[lane] = 2;
}

/// All threads of the block call.
__device__ float* ones(float* shared) {
  shared[threadIdx.x] = 1;
  fence_proxy_async();
  __syncthreads();
  return shared;
}

__global__ void load_stored_kernel(float* x, float* y, Lack lack) {
  TRIREME_DYNAMIC_SHARED(float, shared);
  ones(shared);
  if (threadIdx.x == 0) {
    bulk_store(x, shared, 256);
    bulk_commit();
    if (lack != Lack::kWait) bulk_wait<0>();
  }
  if (lack != Lack::kBarrierAfterWait) __syncthreads();
  if (threadIdx.x == 1) y[0] = x[7];
  if (threadIdx.x == 0) bulk_wait<0>();
}

__global__ void add_to_stored_kernel(float* x, Lack lack) {
  TRIREME_DYNAMIC_SHARED(float, shared);
  ones(shared);
  x[threadIdx.x] = 0;
  if (lack != Lack::kBarrier) __syncthreads();
  if (threadIdx.x == 0) {
    bulk_add(x, shared, 256);
    bulk_commit();
    bulk_wait<0>();
  }
}

__global__ void in_turn_kernel(float* x, float* y, uint32_t* counters, Turn turn) {
  TRIREME_SHARED(uint32_t, place);
  TRIREME_DYNAMIC_SHARED(float, shared);
  if (threadIdx.x == 0) place = atomicAdd(&counters[0], 1U);
  ones(shared);
  const bool ordered = turn != Turn::kUnorderedAdditions && turn != Turn::kUnorderedStore;
  if (threadIdx.x == 0) {
    if (ordered) wait_for_value(&counters[1], place);
    start(x, shared, turn == Turn::kUnorderedAdditions || place > 0);
    bulk_commit();
    if (turn != Turn::kReleasesBeforeWait) bulk_wait<0>();
    if (ordered) release_value(&counters[1], place + 1);
    bulk_wait<0>();
  }
  if (turn != Turn::kLoadsBeforeBarrier) __syncthreads();
  if (ordered && place == gridDim.x - 1) y[threadIdx.x] = x[threadIdx.x];
}

}  // namespace

using cuda_sim::launch;

cudaError_t operands(const float* x, float* d, Lack lack, bool by_copies, bool named, cudaStream_t stream) {
  return launch(operands_kernel, dim3(1), dim3(256), 2 * kPanelBytes, stream, x, d, lack, by_copies, named);
}
cudaError_t passed_operands(const float* x, float* d, Lack lack, bool by_copies, cudaStream_t stream) {
  return launch(passed_operands_kernel, dim3(1), dim3(256), 2 * kPanelBytes, stream, x, d, lack, by_copies);
}
cudaError_t bulk(float* x, bool add, Lack lack, bool named, cudaStream_t stream) {
  return launch(bulk_kernel, dim3(1), dim3(64), 256, stream, x, add, lack, named);
}
cudaError_t bulk_of_warp(float* x, cudaStream_t stream) { return launch(bulk_of_warp_kernel, dim3(1), dim3(32), 0, stream, x); }
cudaError_t load_stored(float* x, float* y, Lack lack, cudaStream_t stream) {
  return launch(load_stored_kernel, dim3(1), dim3(64), 256, stream, x, y, lack);
}
cudaError_t add_to_stored(float* x, Lack lack, cudaStream_t stream) { return launch(add_to_stored_kernel, dim3(1), dim3(64), 256, stream, x, lack); }
cudaError_t in_turn(float* x, float* y, uint32_t* counters, Turn turn, unsigned blocks, cudaStream_t stream) {
  return launch(in_turn_kernel, dim3(blocks), dim3(64), 256, stream, x, y, counters, turn);
}

}  // namespace async_patterns
