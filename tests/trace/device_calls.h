#pragma once
// The calls of traced device code: each is recorded, then passed on to the machine. tests/cuda_sim/device_code.h uses them if CUDA_SIM_TRACED is
// defined; the compiler's instrumentation (-fsanitize=thread) reports the loads and stores.
#include "tests/cuda_sim/device_thread.h"

namespace cuda_trace {

using cuda_sim::Site;

/// The part of a kernel that one thread runs.
class ThreadScope {
 public:
  explicit ThreadScope(const cuda_sim::KernelCall& call);
  ~ThreadScope();
  ThreadScope(const ThreadScope&) = delete;
  ThreadScope& operator=(const ThreadScope&) = delete;
};

/// Loads and stores of this thread within the scope are one atomic operation.
class AtomicScope {
 public:
  AtomicScope();
  ~AtomicScope();
  AtomicScope(const AtomicScope&) = delete;
  AtomicScope& operator=(const AtomicScope&) = delete;
};

void sync_block(Site site);
void sync_warp(unsigned mask, Site site);
uint64_t shuffle(unsigned mask, uint64_t value, int source, Site site);
unsigned vote(unsigned mask, bool predicate, Site site);
void mma(float* d, const uint32_t* a, const uint32_t* b, float (*widen)(uint16_t), Site site);
void ldmatrix(uint32_t* r, const void* row, bool transposed, Site site);
void async_copy(void* shared, const void* global, bool valid, Site site);
void async_commit();
void async_wait(int groups_left);
bool wgmma(const cuda_sim::ProductPart& part, Site site);
bool wgmma_fence(Site site);
bool wgmma_commit(Site site);
bool wgmma_wait(int groups_left, Site site);
void bulk_operation(float* global, const float* shared, int bytes, bool add, Site site);
void bulk_commit();
void bulk_wait(int groups_left);
void fence_proxy_async();
void barrier_sync(int id, int threads, Site site);
void barrier_arrive(int id, int threads, Site site);
void raise_registers(int count, Site site);
void lower_registers(int count, Site site);
void wait_for_value(const uint32_t* counter, uint32_t value, Site site);
void release_value(uint32_t* counter, uint32_t value, Site site);

}  // namespace cuda_trace
