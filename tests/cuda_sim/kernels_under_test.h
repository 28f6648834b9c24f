#pragma once
// Small kernels, right and wrong, compiled as device code: what the machine must run and what it must catch. Each is queued on a stream.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kernels_under_test {

cudaError_t add_one(float* x, int n, cudaStream_t stream);
/// x[i] = value, and `loops` rounds of nothing.
cudaError_t set(float* x, int n, float value, cudaStream_t stream);
cudaError_t copy(const float* from, float* to, int n, cudaStream_t stream);

/// Sum of n values by one block of `threads`, through warp shuffles and static shared memory.
cudaError_t block_sum(const float* x, float* sum, int n, int threads, cudaStream_t stream);
/// The same by a tree in dynamic shared memory; without its barrier where `forget` is 1 (in the loop) or 2 (before it).
cudaError_t tree_sum(const float* x, float* sum, int n, int threads, int forget, cudaStream_t stream);

enum class Wrong : int {
  kNothing,
  kMaskTooSmall,       // lane 31 is not in its own mask
  kMaskTooLarge,       // names lanes that have returned
  kLanesApart,         // half of the warp at one shuffle, half at another
  kHalfAtBarrier,      // half of the block at one barrier, half at another
  kBarrierAndShuffle,  // one warp waits for lanes that wait at the barrier
  kBehindGlobal,       // writes one element behind its memory
  kBehindShared,       // writes one element behind its shared array
  kDivides,            // by zero
  kMisaligned,         // 16 bytes at an address that is no multiple of 16
  kRunsOver,           // its stack
};
cudaError_t go_wrong(Wrong wrong, float* x, int n, cudaStream_t stream);

/// y = what shared and fresh memory hold.
cudaError_t read_shared(float* y, cudaStream_t stream);
/// Thread i: shuffles of its index in all ways: out[i * 8 + way].
cudaError_t shuffles(int* out, cudaStream_t stream);
/// out[0] ballot of odd lanes, [1] any, [2] all, [3] ballot of the lower half.
cudaError_t votes(unsigned* out, cudaStream_t stream);
/// counts[0] += one for each thread.
cudaError_t count(int* counts, unsigned blocks, unsigned threads, cudaStream_t stream);
/// Bits of bfloat16, or of float16 where `half`: d [16,8] = c + a [16,16] b [16,8]; with ldmatrix where asked.
cudaError_t mma(const uint16_t* a, const uint16_t* b, float* d, bool half, bool by_ldmatrix, cudaStream_t stream);
/// 8x32 elements through ldmatrix: out[lane * 4 + j].
cudaError_t ldmatrix(const uint16_t* rows, uint32_t* out, bool transposed, cudaStream_t stream);
/// 32 threads copy 16 bytes each in two groups; `wait`: 0 for both, 1 for the first only, -1 not at all. Columns from `valid` on are zeros.
cudaError_t async_copy(const float* x, float* y, int wait, int valid, cudaStream_t stream);
/// out[block] = the order of the block; order[thread] = the order of the thread in block 0.
cudaError_t orders(int* counter, int* blocks, int* threads, cudaStream_t stream);
cudaError_t with_shape(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);

}  // namespace kernels_under_test
