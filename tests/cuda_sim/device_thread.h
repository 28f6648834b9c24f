#pragma once
// The machine as device code sees it: the current thread, and the synchronisation points of the threads of a block or warp.
#include <cuda_runtime.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

namespace cuda_sim {

/// Source location of a synchronisation point: threads synchronise only at the same location.
struct Site {
  const char* file;
  int line;
};

struct BlockShape {
  uint3 index;
  dim3 block;
  dim3 grid;
};

struct DeviceThread {
  uint3 index;
  const BlockShape* shape;
};
extern constinit thread_local DeviceThread* this_thread;  ///< null in host code

extern std::atomic<bool> hardware_rounding;  ///< Options::hardware_rounding

enum class Meeting : uint8_t {
  kSyncthreads,
  kSyncwarp,
  kShuffle,
  kVote,
  kMma,
  kLdmatrix,
  kWgmma,
  kWgmmaFence,
  kWgmmaCommit,
  kWgmmaWait,
  kBarrierSync,
  kBarrierArrive,
  kRaiseRegisters,
  kLowerRegisters
};

void sync_block(Site site);
void sync_warp(unsigned mask, Site site);
/// Returns the value of lane `source`; 0xFF bytes if that lane is outside the mask.
uint64_t shuffle(unsigned mask, uint64_t value, int source, Site site);
/// Returns one bit for each lane of the mask.
unsigned vote(unsigned mask, bool predicate, Site site);
unsigned lane_id();
/// `widen` converts the 16-bit elements of a and b to float.
void mma(float* d, const uint32_t* a, const uint32_t* b, float (*widen)(uint16_t), Site site);
void ldmatrix(uint32_t* r, const void* row, bool transposed, Site site);
void async_copy(void* shared, const void* global, bool valid, Site site);
void async_commit();
void async_wait(int groups_left);

/// A thread's part of a product of its warpgroup.
struct ProductPart {
  float* d;           ///< columns / 2 values
  const uint32_t* a;  ///< four registers; null: a is in shared memory
  uint64_t a_descriptor, b_descriptor;
  int columns;
  bool transposed_a, transposed_b, add;
  float (*widen)(uint16_t);
};
// The functions of kernels/cuda/warpgroup.cuh. Those of warpgroups return true in the last thread that arrives, before the others continue.
bool wgmma(const ProductPart& part, Site site);
bool wgmma_fence(Site site);
bool wgmma_commit(Site site);
bool wgmma_wait(int groups_left, Site site);
void bulk_operation(float* global, const float* shared, int bytes, bool add, Site site);
void bulk_commit();
void bulk_wait(int groups_left);
inline void fence_proxy_async() {}  // only the recorder of tests/trace sees what it orders
/// Called in the last lane of a warp that arrives at a named barrier, before any thread continues: whether the warp waits there, and whether it is the
/// last one of the phase.
using BarrierArrival = void (*)(int id, bool waits, bool complete);
void barrier_sync(int id, int threads, Site site, BarrierArrival arrived = nullptr);
void barrier_arrive(int id, int threads, Site site, BarrierArrival arrived = nullptr);
void raise_registers(int count, Site site);
void lower_registers(int count, Site site);
uint32_t shared_address(const void* shared, Site site);
/// The blocks of a launch run one after another. If the counter has another value, the block that should set it has not run: an error, because on a
/// GPU the wait would not end if that block could not begin.
void wait_for_value(const uint32_t* counter, uint32_t value, Site site);
/// An error if the counter is not raised: then it was not cleared before the launch, and on a GPU a wait could end too early.
void release_value(uint32_t* counter, uint32_t value, Site site);

/// Returns the block's variable declared at `tag`.
void* static_shared(const void* tag, size_t bytes, size_t alignment);
void* dynamic_shared();

/// One launch: the function that each thread runs, and the pointers among its arguments.
struct KernelCall {
  virtual ~KernelCall() = default;
  virtual void operator()() const = 0;
  const void* entry = nullptr;
  std::vector<const void*> pointers;
  dim3 grid, block;
  size_t dynamic_shared = 0;
  size_t shared_limit = 0;  ///< of static and dynamic shared memory together; set by queue_kernel
};
/// What the recorder of tests/trace wants to know besides: the part of a kernel that one thread runs, and an atomic operation.
struct ThreadScope {
  explicit ThreadScope(const KernelCall& /*call*/) {}
};
struct AtomicScope {
  AtomicScope() {}
};
cudaError_t queue_kernel(std::shared_ptr<KernelCall> call, cudaStream_t stream);

}  // namespace cuda_sim
