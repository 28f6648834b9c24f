#pragma once
// Kernels of one block with known access patterns, for the tests of the trace.
#include <cuda_runtime.h>

#include <cstdint>

namespace access_patterns {

/// One warp: y[lane] = x[lane * stride].
cudaError_t strided_load(const float* x, float* y, int stride, cudaStream_t stream);
/// One warp: 16 bytes per lane, in both directions.
cudaError_t vector_copy(const float* x, float* y, cudaStream_t stream);
/// One warp: writes rows of 32 floats, `stride` floats apart, to shared memory and reads a column.
cudaError_t shared_column(float* y, int stride, cudaStream_t stream);

enum class Order { kNothing, kShuffle, kHalfOfTheWarp, kWholeWarp, kBarrier };
/// Each thread writes shared memory and, after `between`, reads what thread (own ^ apart) wrote: itself (0), its warp (1), another
/// warp (32).
cudaError_t exchange(float* y, Order between, int apart, cudaStream_t stream);
/// The other way round: each thread reads its neighbour's element, and writes its own after `between`.
cudaError_t overwrite(float* y, Order between, cudaStream_t stream);

/// Two blocks: each adds 1 to x[0], or to x[blockIdx.x] if `apart`.
cudaError_t two_blocks(float* x, bool apart, cudaStream_t stream);
/// Block 0 writes x[0], block 1 reads it into x[1].
cudaError_t block_reads_block(float* x, cudaStream_t stream);

enum class Turn { kOrdered, kNoWait, kReadsBeforeBarrier, kReleasesBeforeBarrier };
/// `blocks` blocks of 64 threads take turns by tickets: each adds 1 to every x[i], i < 64, which another thread wrote in the block before. The defects:
/// no wait for the turn, a read between the wait and the barrier, a release before the barrier. counters: two zeros.
cudaError_t in_turn(float* x, uint32_t* counters, Turn turn, unsigned blocks, cudaStream_t stream);

}  // namespace access_patterns
