#include "tests/trace/access_patterns.h"

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vector.cuh"

namespace access_patterns {
namespace {

__global__ void strided_load_kernel(const float* x, float* y, int stride) { y[threadIdx.x] = x[static_cast<int>(threadIdx.x) * stride]; }

__global__ void vector_copy_kernel(const float* x, float* y) {
  trireme::cuda::store_words(y + threadIdx.x * 4, trireme::cuda::load_words<uint4>(x + threadIdx.x * 4));
}

__global__ void shared_column_kernel(float* y, int stride) {
  TRIREME_SHARED(float[32 * 36], tile);
  const int lane = static_cast<int>(threadIdx.x);
  for (int row = 0; row < 32; ++row) tile[row * stride + lane] = static_cast<float>(row);
  __syncwarp();
  y[lane] = tile[lane * stride];
}

__device__ void order(Order between) {
  if (between == Order::kShuffle) static_cast<void>(__shfl_xor_sync(~0u, 1, 1));
  if (between == Order::kHalfOfTheWarp) __syncwarp(threadIdx.x % 32 < 16 ? 0xffffu : 0xffff0000u);
  if (between == Order::kWholeWarp) __syncwarp();
  if (between == Order::kBarrier) __syncthreads();
}

__global__ void exchange_kernel(float* y, Order between, int apart) {
  TRIREME_SHARED(float[64], values);
  values[threadIdx.x] = 1;
  order(between);
  y[threadIdx.x] = values[threadIdx.x ^ static_cast<unsigned>(apart)];
}

__global__ void overwrite_kernel(float* y, Order between) {
  TRIREME_SHARED(float[64], values);
  y[threadIdx.x] = values[threadIdx.x ^ 1];
  order(between);
  values[threadIdx.x] = 1;
}

__global__ void two_blocks_kernel(float* x, bool apart) { x[apart ? blockIdx.x : 0] += 1; }

__global__ void block_reads_block_kernel(float* x) {
  if (blockIdx.x == 0) x[0] = 1;
  if (blockIdx.x == 1) x[1] = x[0];
}

__global__ void in_turn_kernel(float* x, uint32_t* counters, Turn turn) {
  TRIREME_SHARED(uint32_t, place);
  if (threadIdx.x == 0) place = atomicAdd(&counters[0], 1U);
  __syncthreads();
  if (threadIdx.x == 0 && turn != Turn::kNoWait) trireme::cuda::wait_for_value(&counters[1], place);
  if (turn != Turn::kReadsBeforeBarrier) __syncthreads();
  x[(threadIdx.x + 32 * place) % 64] += 1;
  if (turn != Turn::kReleasesBeforeBarrier) __syncthreads();
  if (threadIdx.x == 0) trireme::cuda::release_value(&counters[1], place + 1);
}

}  // namespace

using cuda_sim::launch;

cudaError_t strided_load(const float* x, float* y, int stride, cudaStream_t stream) {
  return launch(strided_load_kernel, dim3(1), dim3(32), 0, stream, x, y, stride);
}
cudaError_t vector_copy(const float* x, float* y, cudaStream_t stream) { return launch(vector_copy_kernel, dim3(1), dim3(32), 0, stream, x, y); }
cudaError_t shared_column(float* y, int stride, cudaStream_t stream) { return launch(shared_column_kernel, dim3(1), dim3(32), 0, stream, y, stride); }
cudaError_t exchange(float* y, Order between, int apart, cudaStream_t stream) {
  return launch(exchange_kernel, dim3(1), dim3(64), 0, stream, y, between, apart);
}
cudaError_t overwrite(float* y, Order between, cudaStream_t stream) { return launch(overwrite_kernel, dim3(1), dim3(64), 0, stream, y, between); }
cudaError_t two_blocks(float* x, bool apart, cudaStream_t stream) { return launch(two_blocks_kernel, dim3(2), dim3(1), 0, stream, x, apart); }
cudaError_t block_reads_block(float* x, cudaStream_t stream) { return launch(block_reads_block_kernel, dim3(2), dim3(1), 0, stream, x); }
cudaError_t in_turn(float* x, uint32_t* counters, Turn turn, unsigned blocks, cudaStream_t stream) {
  return launch(in_turn_kernel, dim3(blocks), dim3(64), 0, stream, x, counters, turn);
}

}  // namespace access_patterns
