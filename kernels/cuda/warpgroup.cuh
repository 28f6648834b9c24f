#pragma once
// Products of a warpgroup, bulk additions, and barriers and registers of specialised warps of sm_90a, one function each (PTX ISA, "Asynchronous Warpgroup
// Level Matrix Multiply-Accumulate Instructions", "cp.reduce.async.bulk", "barrier", "setmaxnreg"). The simulated machine supplies the same functions.
//
// A warpgroup is four consecutive warps from a multiple of four; all its threads call each wgmma function. Its warp w holds rows 16 w to 16 w + 15 of
// results and of operands in registers, in the fragments of mma.m16n8k16. Products read shared memory through the asynchronous proxy: each thread
// that has written an operand by ordinary stores or cp.async calls fence_proxy_async before the barrier behind which a product is issued.
#include "kernels/cuda/ptx.cuh"

namespace trireme::cuda {

/// Operands in shared memory are panels: rows of 64 elements of 16 bits, 128 bytes each, from a multiple of 1,024 bytes on, whose 16-byte chunks are
/// permuted: chunk c of row r is at 128 r + 16 (c ^ r % 8).
constexpr int kPanelColumns = 64;
constexpr int kPanelRowBytes = 128;
__device__ inline int panel_offset(int row, int chunk) { return row * kPanelRowBytes + ((chunk ^ (row & 7)) << 4); }

/// Matrix descriptor of the operand at `address` in shared memory (PTX ISA, "Matrix Descriptor Format"), with 128-byte swizzle.
/// Not transposed, the rows of a panel are the rows of A or the columns of B, 64 elements along k: `address` is that of the first row, plus 32 bytes
/// for each step of 16 along k.
/// Transposed, the rows of a panel are steps along k, and its 64 columns are rows of A or columns of B: `address` is that of the first of 16 rows. An
/// operand of more than 64 columns continues `panel_bytes` further.
__device__ inline uint64_t wgmma_operand(uint32_t address, int panel_bytes = 0) {
  constexpr uint64_t kRowsOfSwizzle = 8 * kPanelRowBytes;
  return uint64_t{(address & 0x3FFFF) >> 4} | uint64_t{static_cast<uint32_t>(panel_bytes) >> 4} << 16 | (kRowsOfSwizzle >> 4) << 32 |
         uint64_t{1} << 62;
}

}  // namespace trireme::cuda

#ifdef __CUDACC__
/// The launch's dynamic shared memory, aligned to 1,024 bytes, as T*. nvcc rounds the static shared memory of such a kernel up to 1,024 bytes.
#define TRIREME_PANEL_SHARED(T, name)                                              \
  extern __shared__ __align__(1024) unsigned char trireme_dynamic_shared_panels[]; \
  T* const name = reinterpret_cast<T*>(trireme_dynamic_shared_panels)

namespace trireme::cuda {

/// Address for wgmma_operand.
__device__ inline uint32_t shared_address(const void* shared) { return static_cast<uint32_t>(__cvta_generic_to_shared(shared)); }

#define TRIREME_TILE(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define TRIREME_TILES_8 \
  TRIREME_TILE(0), TRIREME_TILE(1), TRIREME_TILE(2), TRIREME_TILE(3), TRIREME_TILE(4), TRIREME_TILE(5), TRIREME_TILE(6), TRIREME_TILE(7)
#define TRIREME_TILES_16                                                                                                                       \
  TRIREME_TILES_8, TRIREME_TILE(8), TRIREME_TILE(9), TRIREME_TILE(10), TRIREME_TILE(11), TRIREME_TILE(12), TRIREME_TILE(13), TRIREME_TILE(14), \
      TRIREME_TILE(15)
#define TRIREME_NAMES_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define TRIREME_NAMES_64 \
  TRIREME_NAMES_32       \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define TRIREME_WGMMA(columns, type, names, predicate, operands)                                                                                     \
  "{\n.reg .pred p;\nsetp.ne.b32 p, " predicate ", 0;\nwgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type " {" names "}, " operands \
  ";\n}\n"

/// Chooses the statement for N columns and the type T.
#define TRIREME_WGMMA_OF(statement_64, statement_128)     \
  static_assert(N == 64 || N == 128);                     \
  if constexpr (N == 64 && std::is_same_v<T, bfloat16>) { \
    statement_64("bf16");                                 \
  } else if constexpr (N == 64) {                         \
    statement_64("f16");                                  \
  } else if constexpr (std::is_same_v<T, bfloat16>) {     \
    statement_128("bf16");                                \
  } else {                                                \
    statement_128("f16");                                 \
  }

/// d [64, N] = a [64, 16] b [16, N], plus d if `add`; a and b in shared memory, of T (bfloat16 or float16). N: 64 or 128. Asynchronous: d may be
/// used only behind the wait for the product's group.
template <class T, int N, bool kTransposedA, bool kTransposedB>
__device__ inline void wgmma(float (&d)[N / 8][4], uint64_t a, uint64_t b, bool add) {
#define TRIREME_OPERANDS "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(int{kTransposedA}), "n"(int{kTransposedB})
#define TRIREME_COLUMNS_64(type) \
  asm volatile(TRIREME_WGMMA("64", type, TRIREME_NAMES_32, "%34", "%32, %33, p, 1, 1, %35, %36") : TRIREME_TILES_8 : TRIREME_OPERANDS)
#define TRIREME_COLUMNS_128(type) \
  asm volatile(TRIREME_WGMMA("128", type, TRIREME_NAMES_64, "%66", "%64, %65, p, 1, 1, %67, %68") : TRIREME_TILES_16 : TRIREME_OPERANDS)
  TRIREME_WGMMA_OF(TRIREME_COLUMNS_64, TRIREME_COLUMNS_128)
#undef TRIREME_COLUMNS_128
#undef TRIREME_COLUMNS_64
#undef TRIREME_OPERANDS
}

/// The same with a in registers: a warp's fragment of 16 rows, as operand A of mma_m16n8k16.
template <class T, int N, bool kTransposedB>
__device__ inline void wgmma(float (&d)[N / 8][4], const uint32_t (&a)[4], uint64_t b, bool add) {
#define TRIREME_OPERANDS "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)), "n"(int{kTransposedB})
#define TRIREME_COLUMNS_64(type) \
  asm volatile(TRIREME_WGMMA("64", type, TRIREME_NAMES_32, "%37", "{%32, %33, %34, %35}, %36, p, 1, 1, %38") : TRIREME_TILES_8 : TRIREME_OPERANDS)
#define TRIREME_COLUMNS_128(type) \
  asm volatile(TRIREME_WGMMA("128", type, TRIREME_NAMES_64, "%69", "{%64, %65, %66, %67}, %68, p, 1, 1, %70") : TRIREME_TILES_16 : TRIREME_OPERANDS)
  TRIREME_WGMMA_OF(TRIREME_COLUMNS_64, TRIREME_COLUMNS_128)
#undef TRIREME_COLUMNS_128
#undef TRIREME_COLUMNS_64
#undef TRIREME_OPERANDS
}
#undef TRIREME_WGMMA_OF
#undef TRIREME_WGMMA
#undef TRIREME_NAMES_64
#undef TRIREME_NAMES_32
#undef TRIREME_TILES_16
#undef TRIREME_TILES_8
#undef TRIREME_TILE

/// Call it before the first product after a wait, and before a product whose registers were written since: it orders those writes before the product.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
/// Closes the current group of the warpgroup's products.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
/// Waits until at most N groups are pending. The compiler does not know which registers this is about: see pin.
template <int N>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(N) : "memory");
}
/// Keeps arithmetic on these registers on its side of waits: what reads them after this call is computed after it, and what has written them before.
/// After a wait, call it for the results of the products that have ended.
template <int N>
__device__ inline void pin(float (&d)[N][4]) {
#pragma unroll
  for (int n = 0; n < N; ++n) asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}

/// Makes what this thread has written to shared memory visible to products and bulk additions that are issued behind a later barrier.
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

/// Starts adding `bytes` of fp32 in shared memory to global memory, in any order; bytes a multiple of 16, both aligned to 16. One thread calls for all.
/// The addition sees global memory that became visible to this thread through wait_for_value and a barrier.
__device__ inline void bulk_add(float* global, const float* shared, int bytes) {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
  asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;\n" ::"l"(global), "r"(shared_address(shared)), "r"(bytes)
               : "memory");
}
/// The same, storing.
__device__ inline void bulk_store(float* global, const float* shared, int bytes) {
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n" ::"l"(global), "r"(shared_address(shared)), "r"(bytes) : "memory");
}
/// Closes this thread's current group of bulk operations.
__device__ inline void bulk_commit() { asm volatile("cp.async.bulk.commit_group;\n" ::: "memory"); }
/// Waits until at most N groups of this thread are pending. The shared memory of the others may be overwritten, and release_value shows other blocks
/// what they wrote.
template <int N>
__device__ inline void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;\n" ::"n"(N) : "memory");
  asm volatile("fence.proxy.async.global;\n" ::: "memory");
}

/// Waits until `threads` threads of the block, a multiple of 32, have called this or barrier_arrive for barrier `id`, 1 to 15; then the barrier begins
/// anew. What they did before their call is visible behind this one. All lanes of a warp call.
__device__ inline void barrier_sync(int id, int threads) { asm volatile("barrier.cta.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory"); }
/// The same without waiting: it shows this thread nothing of what others did.
__device__ inline void barrier_arrive(int id, int threads) { asm volatile("barrier.cta.arrive %0, %1;\n" ::"r"(id), "r"(threads) : "memory"); }

/// Gives each thread of the warpgroup N registers, a multiple of 8 from 24 to 256 and at least as many as it has. Waits until other warpgroups of the
/// block have given up enough. The kernel must be compiled for a maximum number of registers, as by __launch_bounds__.
template <int N>
__device__ inline void raise_registers() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(N) : "memory");
}
/// Leaves N registers to each thread of the warpgroup, at most as many as it has, and gives up the others.
template <int N>
__device__ inline void lower_registers() {
  static_assert(N % 8 == 0 && N >= 24 && N <= 256);
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(N) : "memory");
}

}  // namespace trireme::cuda
#endif
