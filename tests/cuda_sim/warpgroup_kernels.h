#pragma once
// Kernels of warpgroup products, bulk operations and specialised warps, correct and incorrect, compiled as device code. Each is queued on a stream.
#include <cuda_runtime_api.h>

#include <cstdint>

namespace warpgroup_kernels {

/// A product of [64, 64] by [64, columns], in four steps along k.
struct Form {
  bool half;       // float16, otherwise bfloat16
  int columns;     // 64 or 128
  bool registers;  // A in registers
  bool transposed_a, transposed_b;
  bool add;  // to what is in the results, otherwise the first step overwrites them
};
/// a [64, 64] and b [64, columns] by rows, of 16 bits. Each of `groups` warpgroups reads and writes d[thread * columns / 2 + i], the registers of its
/// threads. With A in registers, those of step s are a[s][thread][4] in place of the matrix.
cudaError_t product(const Form& form, const void* a, const uint16_t* b, float* d, int groups, cudaStream_t stream);

enum class Defect : int {
  kNothing,
  // Errors at a product.
  kHalfAWarpgroup,    // a block of 192 threads
  kReturned,          // a thread returns before the product
  kReturnsMeanwhile,  // a thread returns while others wait for it
  kTwoPlaces,         // two warps at one product, two at another
  kBarrierInstead,    // one warp at __syncthreads
  kNoWgmmaFence,      // none before the first product
  kNoSecondFence,     // none behind a wait
  kOtherOperand,      // a thread has another descriptor
  kOtherAdd,          // a thread adds
  kOtherSwizzle,      // a descriptor of the 64-byte swizzle
  kBaseOffset,        // a base offset
  kSecondRow,         // an operand from the second row of a panel
  kAcrossRow,         // an operand from the second chunk of a row, half a step along k
  kStride,            // a stride of 512 bytes
  kBehindShared,      // an operand that ends behind the shared memory
  kStaticOperand,     // shared_address of a static variable
  kOtherShape,        // 64 columns into some of the registers of a pending product of 128
  kNoCommit,          // returns without
  kNoWait,            // returns without
  kWaitTooWeak,       // returns with one group pending
  // Wrong results under some seeds.
  kReadsEarly,     // uses the results before the wait
  kWritesOperand,  // overwrites an operand before the wait, behind a barrier
  // An error under some seeds.
  kWritesResults,  // writes results before the wait
  kScalesResults,  // multiplies them
  // Errors of bulk operations.
  kBulkSize,      // 20 bytes
  kBulkGlobal,    // not aligned in global memory
  kBulkShared,    // not aligned in shared memory
  kBulkOutside,   // ends behind the shared memory
  kBulkNoCommit,  // returns without
  kBulkNoWait,    // returns without
};
/// d[thread * 32 + i] = the product of two matrices [64, 64] of bfloat16 ones: 64 in each element.
cudaError_t launch_defective(Defect wrong, float* d, cudaStream_t stream);
/// Two such products in two groups: behind the wait for the first one, first[thread * 32 + i] and second[...] are the registers of both. Then the second
/// one is waited for, and both[...] is the sum.
cudaError_t two_groups(float* first, float* second, float* both, cudaStream_t stream);

/// x[i] = i, for i < 64, then x[i] += i twice, if `add`, by bulk operations of two threads. Without `wait`, thread 0 counts what it finds changed in x
/// before the wait: *early.
cudaError_t bulk(float* x, bool add, int* early, cudaStream_t stream);

enum class BarrierDefect : int {
  kNothing,
  kNumber0,
  kNumber16,
  kNoThreads,     // barrier_sync for 0 threads
  kPartOfAWarp,   // for 100
  kOutside,       // for more than the block has
  kOtherCount,    // two warps for other numbers of threads
  kOtherNumber,   // a lane at another barrier than its warp
  kTwoPlaces,     // half of a warp in another line
  kLaneReturned,  // a lane returns before
  kArrivesTwice,  // a warp in one phase
  kIncomplete,    // one warp of four does not arrive, but waits at __syncthreads
  kAllReturned,   // one warp of four returns without arriving
  kStaysOpen,     // a warp arrives, and no other does: this is no error
};
/// Launches a block of 128 threads.
cudaError_t launch_barriers(BarrierDefect wrong, cudaStream_t stream);
/// y[i] = 2 x[i] for i < kRingItems, through two buffers: two warps write them, and two read what both have written. `reuses_early`: the first two
/// write before they wait for the others.
constexpr int kRingItems = 64 * 10;
cudaError_t ring(const float* x, float* y, bool reuses_early, cudaStream_t stream);
/// 128 threads, of which the first warp returns. The second one arrives at a named barrier, behind which the others call __syncthreads: y[i] = 1 of 96.
cudaError_t barrier_beside(int* y, cudaStream_t stream);

enum class RegistersDefect : int {
  kNothing,
  kTooMany,      // the second warpgroup cannot have as many
  kRaisesDown,   // to fewer than it has
  kLowersUp,     // to more than it has
  kPartOfGroup,  // one warp does not call
};
/// Three warpgroups, of which the last one lowers its registers from 168 to 56 and the others raise theirs to 224. y[i] = whether the last one had begun.
cudaError_t registers(RegistersDefect wrong, int* y, cudaStream_t stream);

}  // namespace warpgroup_kernels
