#pragma once
// Tensor-core, asynchronous-copy and synchronisation instructions of sm_80 and newer, one function each. The simulated machine supplies the same functions.
// Fragment layouts: PTX ISA, "Matrix fragments for mma.m16n8k16".
#include <type_traits>

#include "kernels/cuda/device.cuh"

#ifdef __CUDACC__
namespace trireme::cuda {

/// d [16,8] += a [16,16] b [16,8]: pairs of T (bfloat16 or float16) in a and b, fp32 in d. All lanes of a warp must call.
template <class T>
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<T, bfloat16>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(std::is_same_v<T, float16>);
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// Four 8x8 matrices of 16-bit elements from shared memory; lane i gives the address of row i % 8 of matrix i / 8 (16-byte aligned).
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address));
}
/// The same, each matrix transposed.
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], const void* row) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(address));
}

/// Starts an asynchronous copy of 16 bytes from global to shared memory; if not `valid`, writes zeros and does not read `global`.
__device__ inline void cp_async_16(void* shared, const void* global, bool valid) {
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const int bytes = valid ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(address), "l"(global), "r"(bytes) : "memory");
}
/// Closes this thread's current group of copies.
__device__ inline void cp_async_commit() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most N groups of this thread are pending. Other threads see the copied bytes after a barrier.
template <int N>
__device__ inline void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(N) : "memory");
}

/// 2^x with an error of at most 2 ulp, in one instruction; results below 2^-126 become zero.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

/// Waits until a block has set the counter to `value` by release_value. Behind it, and behind a barrier for the other threads of the block, what was
/// written before the release is visible. The other block must have begun, or the wait may never end.
__device__ inline void wait_for_value(const uint32_t* counter, uint32_t value) {
  uint32_t now;
  for (;;) {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(now) : "l"(counter) : "memory");
    if (now == value) return;
    __nanosleep(32);
  }
}
/// Sets the counter when all that this thread has written is visible to the GPU, and all that the threads of its block wrote before their last barrier.
__device__ inline void release_value(uint32_t* counter, uint32_t value) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;\n" ::"l"(counter), "r"(value) : "memory");
}

/// threadIdx.x, which the compiler takes for a new value: what is computed from it needs no registers before.
__device__ inline int reread_thread() {
  int thread;
  asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
  return thread;
}

}  // namespace trireme::cuda
#endif
