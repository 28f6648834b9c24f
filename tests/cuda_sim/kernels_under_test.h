#pragma once
// Small correct and incorrect kernels, compiled as device code: the machine must run the former and catch the latter. Each is queued on a stream.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace kernels_under_test {

cudaError_t add_one(float* x, int n, cudaStream_t stream);
/// x[i] = value.
cudaError_t set(float* x, int n, float value, cudaStream_t stream);
cudaError_t copy(const float* from, float* to, int n, cudaStream_t stream);

/// Sum of n values by one block of `threads`, through warp shuffles and static shared memory.
cudaError_t block_sum(const float* x, float* sum, int n, int threads, cudaStream_t stream);
/// The same with a tree in dynamic shared memory. It lacks the barrier in the loop if `forget` is 1, or the barrier before the loop if `forget` is 2.
cudaError_t tree_sum(const float* x, float* sum, int n, int threads, int forget, cudaStream_t stream);

enum class Defect : int {
  kNothing,
  kMaskTooSmall,       // lane 31 is not in its own mask
  kMaskTooLarge,       // the mask names lanes that have returned
  kLanesApart,         // half of the warp at one shuffle, half at another
  kHalfAtBarrier,      // half of the block at one barrier, half at another
  kBarrierAndShuffle,  // one warp waits for lanes that wait at the barrier
  kBehindGlobal,       // writes one element past its memory
  kBehindShared,       // writes one element past its shared array
  kDivides,            // divides by zero
  kMisalignedLoad,     // loads 16 bytes from an address that is not a multiple of 16
  kMisalignedStore,    // stores them
  kMisalignedCarve,    // stores 16 bytes at the beginning of a shared array of bytes, which may lie at any address
  kMisalignedCopy,     // copies 16 bytes by cp.async to the second float of a shared array of float4
  kStackOverflow,      // overflows its stack
};
cudaError_t launch_defective(Defect wrong, float* x, int n, cudaStream_t stream);

/// y = the contents of uninitialised shared memory: 128 bytes of static, and of `dynamic` bytes of dynamic memory the first 128.
cudaError_t read_shared(float* y, size_t dynamic, cudaStream_t stream);
/// out[i * 8 + way] = thread i's index shuffled in each of 8 ways.
cudaError_t shuffles(int* out, cudaStream_t stream);
/// out[0] ballot of odd lanes, [1] any, [2] all, [3] ballot of the lower half.
cudaError_t votes(unsigned* out, cudaStream_t stream);
/// counts[0] += 1 for each thread.
cudaError_t count(int* counts, unsigned blocks, unsigned threads, cudaStream_t stream);
/// One mma.m16n8k16 on the registers of 32 lanes: a[lane * 4 + i] and b[lane * 2 + i], pairs of bfloat16, or of float16 if `half`; d[lane * 4 + i].
cudaError_t mma(const uint32_t* a, const uint32_t* b, float* d, bool half, cudaStream_t stream);
/// Loads 8x32 elements with ldmatrix: out[lane * 4 + j].
cudaError_t ldmatrix(const uint16_t* rows, uint32_t* out, bool transposed, cudaStream_t stream);
/// y[i] = 2 to the power x[i], by ex2.approx.
cudaError_t exp2(const float* x, float* y, int n, cudaStream_t stream);
/// 32 threads copy 16 bytes each in two groups. `wait`: 0 waits for both, 1 for the first only, -1 for neither. Columns from `valid` on are zeros.
cudaError_t async_copy(const float* x, float* y, int wait, int valid, cudaStream_t stream);
/// blocks[block] = execution rank of the block; threads[thread] = execution rank of the thread in block 0.
cudaError_t orders(int* counter, int* blocks, int* threads, cudaStream_t stream);
/// Blocks of 64 threads in turn: *sum = 31 * *sum + the block's place, which is a ticket or, if not `by_ticket`, the index of the block.
/// counters: two zeros, of which the second is what the blocks set and wait for.
cudaError_t in_turn(uint32_t* counters, uint32_t* sum, unsigned blocks, bool by_ticket, cudaStream_t stream);
/// marks[block] = 1.
cudaError_t mark_blocks(int* marks, unsigned blocks, cudaStream_t stream);
cudaError_t with_shape(dim3 grid, dim3 block, size_t shared, cudaStream_t stream);
/// Opts in to dynamic shared memory for the kernel of with_shape.
cudaError_t allow_shared(int bytes);

}  // namespace kernels_under_test
