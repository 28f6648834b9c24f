#pragma once
// Kernels of products and bulk operations whose order in memory is known, for the tests of the trace.
#include <cuda_runtime.h>

#include <cstdint>

namespace async_patterns {

/// What is missing, or in the wrong place.
enum class Lack {
  kNothing,
  kCopyWait,          ///< no wait for cp.async
  kProxyFence,        ///< no fence_proxy_async
  kProxyFenceFirst,   ///< fence_proxy_async before the writes instead of behind them
  kOneProxyFence,     ///< fence_proxy_async by thread 0 only
  kBarrier,           ///< no barrier between fence_proxy_async and the operation
  kWait,              ///< no wait for the operation before its operands are overwritten, behind a barrier
  kCommit,            ///< the operation belongs to no group yet when the wait comes
  kWaitForAll,        ///< the wait leaves one group pending
  kBarrierAfterWait,  ///< no barrier between the wait and the overwriting, by all threads
  kOwnWarpgroup,      ///< the same, but only threads of the warpgroup, or the thread, that has waited overwrite: this is no race
  kProxyFenceLate,    ///< fence_proxy_async behind the barrier
  kWarpBefore,        ///< of the barrier before the product, by one warp of its warpgroup
  kWarpAfterWait,     ///< of the barrier between the wait and the overwriting, by one warp of the warpgroup
};

/// 256 threads write two operands from x (8,192 bytes), by stores or cp.async, the first warpgroup multiplies them, and the operands are overwritten.
/// `named`: the barriers are those of barrier_sync.
cudaError_t operands(const float* x, float* d, Lack lack, bool by_copies, bool named, cudaStream_t stream);
/// The second of two warpgroups writes two operands, the first one multiplies them, and the second one overwrites them. It arrives at a named barrier
/// before the product, and waits at another behind the product's wait. Lacks: those before kOwnWarpgroup but kCommit, kWaitForAll and kOneProxyFence, and
/// those behind it.
cudaError_t passed_operands(const float* x, float* d, Lack lack, bool by_copies, cudaStream_t stream);
/// 64 threads write 64 floats to shared memory, thread 0 adds them to x or stores them there, and the threads overwrite them.
cudaError_t bulk(float* x, bool add, Lack lack, bool named, cudaStream_t stream);
/// The same by the threads of a warp, with __syncwarp.
cudaError_t bulk_of_warp(float* x, cudaStream_t stream);
/// Thread 0 stores 64 floats to x by a bulk operation, and thread 1 loads them into y. Lacks: kWait, kBarrierAfterWait.
cudaError_t load_stored(float* x, float* y, Lack lack, cudaStream_t stream);
/// 64 threads store zeros to x, and thread 0 adds to x by a bulk operation. Lack: kBarrier.
cudaError_t add_to_stored(float* x, Lack lack, cudaStream_t stream);

enum class Turn { kOrdered, kUnorderedAdditions, kUnorderedStore, kReleasesBeforeWait, kLoadsBeforeBarrier };
/// Blocks take turns: the first stores 64 floats to x by a bulk operation and the others add to them, each behind a wait for the block before. The last
/// one loads x. Without order all blocks add, which is no conflict, or the first one stores. counters: two zeros.
cudaError_t in_turn(float* x, float* y, uint32_t* counters, Turn turn, unsigned blocks, cudaStream_t stream);

}  // namespace async_patterns
