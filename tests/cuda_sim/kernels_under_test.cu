#include "tests/cuda_sim/kernels_under_test.h"

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vector.cuh"

namespace kernels_under_test {
namespace {

using trireme::cuda::load_words, trireme::cuda::store_words;

constexpr unsigned kFull = 0xffffffffu;

__global__ void add_one_kernel(float* x, int n) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < n) x[i] += 1;
}
__global__ void set_kernel(float* x, int n, float value) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) x[i] = value;
}
__global__ void copy_kernel(const float* from, float* to, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) to[i] = from[i];
}

__device__ float warp_sum(float value) {
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(kFull, value, lanes);
  return value;
}

__global__ void block_sum_kernel(const float* x, float* sum, int n) {
  TRIREME_SHARED(float[32], partial);
  float own = 0;
  for (unsigned i = threadIdx.x; i < static_cast<unsigned>(n); i += blockDim.x) own += x[i];
  own = warp_sum(own);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = own;
  __syncthreads();
  if (threadIdx.x < 32) {
    own = warp_sum(threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0);
    if (threadIdx.x == 0) *sum = own;
  }
}

__global__ void tree_sum_kernel(const float* x, float* sum, int n, int forget) {
  TRIREME_DYNAMIC_SHARED(float, values);
  const unsigned t = threadIdx.x;
  values[t] = static_cast<int>(t) < n ? x[t] : 0;
  if (forget != 2) __syncthreads();
  for (unsigned half = blockDim.x / 2; half > 0; half /= 2) {
    if (t < half) values[t] += values[t + half];
    if (forget != 1) __syncthreads();
  }
  if (t == 0) *sum = values[0];
}

__device__ int run_over(volatile int* depth) {
  volatile char page[4096];
  page[0] = static_cast<char>(*depth);
  return *depth < 0 ? page[0] : run_over(depth) + page[0];
}

__global__ void wrong_kernel(Defect wrong, float* x, int n) {
  TRIREME_SHARED(float[5], few);
  const int t = static_cast<int>(threadIdx.x);
  switch (wrong) {
    case Defect::kNothing: break;
    case Defect::kMaskTooSmall: x[t] = __shfl_xor_sync(0x7fffffffu, x[t], 1); break;
    case Defect::kMaskTooLarge:
      if (t % 32 < 16) x[t] = __shfl_xor_sync(kFull, x[t], 1);
      break;
    case Defect::kLanesApart:
      if (t % 2 == 0)
        x[t] = __shfl_xor_sync(kFull, x[t], 2);
      else
        x[t] = __shfl_xor_sync(kFull, x[t], 2);
      break;
    case Defect::kHalfAtBarrier:
      if (t < 32)
        __syncthreads();
      else
        __syncthreads();
      break;
    case Defect::kBarrierAndShuffle:
      if (t % 2 == 0) __syncwarp();
      __syncthreads();
      break;
    case Defect::kBehindGlobal: x[n] = 1; break;
    case Defect::kBehindShared: few[t < 6 ? t : 0] = 1; break;
    case Defect::kDivides: x[t] = static_cast<float>(n / (n - static_cast<int>(blockDim.x))); break;
    case Defect::kMisalignedLoad: x[t] = __uint_as_float(load_words<uint4>(x + 1).w); break;
    case Defect::kMisalignedStore: store_words(x + 1, uint4{}); break;
    case Defect::kMisalignedCarve: {
      TRIREME_SHARED(unsigned char[64], bytes);
      store_words(bytes, uint4{});
      break;
    }
    case Defect::kMisalignedCopy: {
      TRIREME_SHARED(float4[8], staged);
      trireme::cuda::cp_async_16(&staged[0].y, x, true);
      break;
    }
    case Defect::kStackOverflow: {
      volatile int depth = t;
      x[t] = static_cast<float>(run_over(&depth));
    }
  }
}

__global__ void read_shared_kernel(float* y) {
  TRIREME_SHARED(float[32], fixed);
  TRIREME_DYNAMIC_SHARED(float, dynamic);
  y[threadIdx.x] = fixed[threadIdx.x];
  y[threadIdx.x + 32] = dynamic[threadIdx.x];
  fixed[threadIdx.x] = dynamic[threadIdx.x] = 1;
}

__global__ void shuffles_kernel(int* out) {
  const int t = static_cast<int>(threadIdx.x);
  int* const own = out + t * 8;
  own[0] = __shfl_sync(kFull, t, 5);
  own[1] = __shfl_sync(kFull, t, 5, 8);
  own[2] = __shfl_up_sync(kFull, t, 3);
  own[3] = __shfl_down_sync(kFull, t, 3);
  own[4] = __shfl_xor_sync(kFull, t, 9);
  own[5] = __shfl_up_sync(kFull, t, 3, 8);
  own[6] = __shfl_down_sync(kFull, t, 3, 8);
  own[7] = t < 20 ? static_cast<int>(__shfl_down_sync(0x000fffffu, static_cast<double>(t), 10)) : -7;
}

__global__ void votes_kernel(unsigned* out) {
  const unsigned t = threadIdx.x;
  const unsigned odd = __ballot_sync(kFull, t % 2 == 1);
  const int any = __any_sync(kFull, t == 40), all = __all_sync(kFull, t < 32);
  unsigned half = 0;
  if (t < 16) half = __ballot_sync(0xffffu, t > 13);
  __syncwarp();
  if (t == 0) out[0] = odd, out[1] = static_cast<unsigned>(any), out[2] = static_cast<unsigned>(all), out[3] = half;
}

__global__ void count_kernel(int* counts) { atomicAdd(counts, 1); }

template <class T>
__global__ void mma_kernel(const uint32_t* a, const uint32_t* b, float* d) {
  const unsigned lane = threadIdx.x;
  uint32_t fa[4], fb[2];
  float sums[4];
  for (unsigned i = 0; i < 4; ++i) fa[i] = a[lane * 4 + i], sums[i] = d[lane * 4 + i];
  for (unsigned i = 0; i < 2; ++i) fb[i] = b[lane * 2 + i];
  trireme::cuda::mma_m16n8k16<T>(sums, fa, fb);
  for (unsigned i = 0; i < 4; ++i) d[lane * 4 + i] = sums[i];
}

__global__ void ldmatrix_kernel(const uint16_t* rows, uint32_t* out, bool transposed) {
  TRIREME_DYNAMIC_SHARED(uint4, shared);
  shared[threadIdx.x] = reinterpret_cast<const uint4*>(rows)[threadIdx.x];
  __syncwarp();
  uint32_t r[4];
  if (transposed)
    trireme::cuda::ldmatrix_x4_trans(r, shared + threadIdx.x);
  else
    trireme::cuda::ldmatrix_x4(r, shared + threadIdx.x);
  for (unsigned j = 0; j < 4; ++j) out[threadIdx.x * 4 + j] = r[j];
}

__global__ void exp2_kernel(const float* x, float* y, int n) {
  for (int i = static_cast<int>(threadIdx.x); i < n; i += static_cast<int>(blockDim.x)) y[i] = trireme::cuda::exp2_fast(x[i]);
}

__global__ void async_copy_kernel(const float* x, float* y, int wait, int valid) {
  TRIREME_SHARED(float4[64], staged);
  const unsigned t = threadIdx.x;
  for (unsigned half = 0; half < 2; ++half) {
    const unsigned at = half * 32 + t;
    trireme::cuda::cp_async_16(&staged[at], x + at * 4, static_cast<int>(at) < valid);
    trireme::cuda::cp_async_commit();
  }
  if (wait == 0) trireme::cuda::cp_async_wait<0>();
  if (wait == 1) trireme::cuda::cp_async_wait<1>();
  __syncthreads();
  for (unsigned at = (t + 1) % 32; at < 64; at += 32) reinterpret_cast<float4*>(y)[at] = staged[at];
}

__global__ void orders_kernel(int* counter, int* blocks, int* threads) {
  const int order = atomicAdd(counter, 1);
  if (threadIdx.x == 0) blocks[blockIdx.x] = order;
  if (blockIdx.x == 0) threads[threadIdx.x] = order;
}

__global__ void in_turn_kernel(uint32_t* counters, uint32_t* sum, bool by_ticket) {
  TRIREME_SHARED(uint32_t, place);
  if (threadIdx.x == 0) {
    place = by_ticket ? atomicAdd(&counters[0], 1U) : blockIdx.x;
    if (place > 0) trireme::cuda::wait_for_value(&counters[1], place);
  }
  __syncthreads();
  if (threadIdx.x == 63) *sum = 31 * *sum + place;
  __syncthreads();
  if (threadIdx.x == 0) trireme::cuda::release_value(&counters[1], place + 1);
}

__global__ void mark_blocks_kernel(int* marks) { marks[blockIdx.x] = 1; }

__global__ void nothing_kernel() {}

}  // namespace

using cuda_sim::launch;

cudaError_t add_one(float* x, int n, cudaStream_t stream) {
  return launch(add_one_kernel, dim3(static_cast<unsigned>(n + 63) / 64), dim3(64), 0, stream, x, n);
}
cudaError_t set(float* x, int n, float value, cudaStream_t stream) { return launch(set_kernel, dim3(1), dim3(32), 0, stream, x, n, value); }
cudaError_t copy(const float* from, float* to, int n, cudaStream_t stream) { return launch(copy_kernel, dim3(1), dim3(32), 0, stream, from, to, n); }
cudaError_t block_sum(const float* x, float* sum, int n, int threads, cudaStream_t stream) {
  return launch(block_sum_kernel, dim3(1), dim3(static_cast<unsigned>(threads)), 0, stream, x, sum, n);
}
cudaError_t tree_sum(const float* x, float* sum, int n, int threads, int forget, cudaStream_t stream) {
  return launch(tree_sum_kernel, dim3(1), dim3(static_cast<unsigned>(threads)), static_cast<size_t>(threads) * 4, stream, x, sum, n, forget);
}
cudaError_t launch_defective(Defect wrong, float* x, int n, cudaStream_t stream) {
  return launch(wrong_kernel, dim3(1), dim3(64), 0, stream, wrong, x, n);
}
cudaError_t read_shared(float* y, size_t dynamic, cudaStream_t stream) { return launch(read_shared_kernel, dim3(3), dim3(32), dynamic, stream, y); }
cudaError_t shuffles(int* out, cudaStream_t stream) { return launch(shuffles_kernel, dim3(1), dim3(32), 0, stream, out); }
cudaError_t votes(unsigned* out, cudaStream_t stream) { return launch(votes_kernel, dim3(1), dim3(32), 0, stream, out); }
cudaError_t count(int* counts, unsigned blocks, unsigned threads, cudaStream_t stream) {
  return launch(count_kernel, dim3(blocks), dim3(threads), 0, stream, counts);
}
cudaError_t mma(const uint32_t* a, const uint32_t* b, float* d, bool half, cudaStream_t stream) {
  return launch(half ? mma_kernel<trireme::float16> : mma_kernel<trireme::bfloat16>, dim3(1), dim3(32), 0, stream, a, b, d);
}
cudaError_t ldmatrix(const uint16_t* rows, uint32_t* out, bool transposed, cudaStream_t stream) {
  return launch(ldmatrix_kernel, dim3(1), dim3(32), 512, stream, rows, out, transposed);
}
cudaError_t exp2(const float* x, float* y, int n, cudaStream_t stream) { return launch(exp2_kernel, dim3(1), dim3(32), 0, stream, x, y, n); }
cudaError_t async_copy(const float* x, float* y, int wait, int valid, cudaStream_t stream) {
  return launch(async_copy_kernel, dim3(1), dim3(32), 0, stream, x, y, wait, valid);
}
cudaError_t orders(int* counter, int* blocks, int* threads, cudaStream_t stream) {
  return launch(orders_kernel, dim3(16), dim3(16), 0, stream, counter, blocks, threads);
}
cudaError_t in_turn(uint32_t* counters, uint32_t* sum, unsigned blocks, bool by_ticket, cudaStream_t stream) {
  return launch(in_turn_kernel, dim3(blocks), dim3(64), 0, stream, counters, sum, by_ticket);
}
cudaError_t mark_blocks(int* marks, unsigned blocks, cudaStream_t stream) {
  return launch(mark_blocks_kernel, dim3(blocks), dim3(1), 0, stream, marks);
}
cudaError_t with_shape(dim3 grid, dim3 block, size_t shared, cudaStream_t stream) { return launch(nothing_kernel, grid, block, shared, stream); }
cudaError_t allow_shared(int bytes) {
  return cudaFuncSetAttribute(reinterpret_cast<const void*>(nothing_kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

}  // namespace kernels_under_test
