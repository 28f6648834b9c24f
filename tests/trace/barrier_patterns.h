#pragma once
// Kernels of warps that pass data on by named barriers, whose order in memory is known, for the tests of the trace.
#include <cuda_runtime.h>

#include <cstdint>

namespace barrier_patterns {

/// What is missing, or in the wrong place.
enum class Lack {
  kNothing,
  kRead,           ///< neither side calls the barrier that frees a buffer
  kReadsLast,      ///< those who read arrive at it before they read
  kWritesFirst,    ///< those who write wait there after they have written
  kArrivesFirst,   ///< those who write arrive before they write
  kArrivesInstead  ///< those who read arrive in place of waiting
};
/// Two warps write four items of 64 floats from x to two buffers in turn, by stores or cp.async, and two other warps read them into y.
cudaError_t ring(const float* x, float* y, Lack lack, bool by_copies, cudaStream_t stream);

/// Four warps. The first one writes 32 floats and passes them on to the second one by a barrier, the third one to the fourth one by another.
enum class Between {
  kOwn,       ///< the second one reads
  kOther,     ///< the fourth one reads
  kChain,     ///< the same, but the second one passes them to the third one by another barrier
  kBroken,    ///< the same, but the second one only arrives at the first barrier
  kSameWarp,  ///< the second one writes, and reads what its other lanes have written, behind the first barrier
  kArriving   ///< the first one reads what its other lanes have written, behind the barrier at which it arrives
};
cudaError_t pairs(float* y, Between between, cudaStream_t stream);

/// The first of five warps writes 32 floats that the four others read, and overwrites them behind a barrier at which the others arrive, but for warp
/// `forgotten`; 0: none.
cudaError_t readers(float* y, int forgotten, cudaStream_t stream);

enum class Turn { kOrdered, kNoWait, kLoadsBeforeBarrier, kArrivesBeforeStore };
/// Blocks of two warps take turns: the first warp waits for the block before, the second one adds 1 to 32 floats of x, and the first one releases.
/// counters: two zeros.
cudaError_t in_turn(float* x, uint32_t* counters, Turn turn, unsigned blocks, cudaStream_t stream);

}  // namespace barrier_patterns
