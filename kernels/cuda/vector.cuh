#pragma once
// Loads and stores fp32, bf16 or fp16 elements as small arrays of float in registers, 16 bytes at a time. Tensors may begin at any element: the host
// calls aligned_16 or aligned_rows once and launches the kernel with N = kVector<T> elements per access, or with N = 1.
//
//   float a[N];                          // N = kVector<T>, a multiple of it, its half (8 bytes), or 1
//   load_vector(x + i, a);               // all N elements exist
//   load_vector(x + i, count - i, a);    // only the first `count - i` exist; the others are read as zeros
#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "kernels/cuda/device.cuh"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#endif

namespace trireme::cuda {

/// Elements of T in one 16-byte access.
template <class T>
constexpr int kVector = 16 / static_cast<int>(sizeof(T));

/// True if all addresses allow 16-byte accesses; null (an absent operand) does.
template <class... Elements>
bool aligned_16(const Elements*... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}

/// True if every row of `columns` elements from these addresses allows 16-byte accesses.
template <class... Elements>
bool aligned_rows(int64_t columns, const Elements*... pointers) {
  return aligned_16(pointers...) && ((columns * static_cast<int64_t>(sizeof(Elements)) % 16 == 0) && ...);
}

/// Calls body(T{}) with T = float, bfloat16 or float16, the dtypes that GPU kernels support.
template <class Body>
void dispatch_gpu_float(DType dtype, Body&& body) {
  switch (dtype) {
    case DType::kF32: return body(float{});
    case DType::kBF16: return body(bfloat16{});
    case DType::kF16: return body(float16{});
    default: throw InternalError(concat("GPU kernels support F32, BF16 and F16, not ", name_of(dtype)));
  }
}

/// Calls body(first, count) for consecutive ranges of `rows`, so that the count * per_row items of one launch can be divided in 32 bits.
template <class Body>
void for_row_ranges(int64_t rows, int64_t per_row, Body&& body) {
  const int64_t most = std::max<int64_t>(1, (int64_t{1} << 30) / std::max<int64_t>(1, per_row));
  for (int64_t first = 0; first < rows; first += most) body(first, std::min(most, rows - first));
}

/// A grid that covers `items` with one thread each, but no more blocks than fill the GPU a few times: for grid-stride loops.
inline dim3 stride_grid(const Context& ctx, int64_t items, int block) {
  const int64_t most = int64_t{32} * ctx.gpu->properties().multiprocessors;
  return dim3(static_cast<unsigned>(std::min(ceil_div(items, block), most)));
}

__device__ __forceinline__ int64_t thread_index() { return int64_t{blockIdx.x} * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int64_t thread_count() { return int64_t{gridDim.x} * blockDim.x; }

/// Position of a column in a row of floats in shared memory that has one unused word after every 32. Then neither lanes that own N <= 32 consecutive
/// columns nor lanes that own one have bank conflicts. A row of 32 N columns takes padded(32 N) floats.
__host__ __device__ constexpr int padded(int column) { return column + column / kWarp; }

/// A scalar of the size of Words. Compilers divide the copy of a struct into its members and do not always join them again.
template <class Words>
using Scalar = std::conditional_t<sizeof(Words) == 16, unsigned __int128, uint64_t>;

/// Words is uint4 (16 bytes) or uint2 (8 bytes). The address must be a multiple of its size.
template <class Words>
__device__ __forceinline__ Words load_words(const void* from) {
  return std::bit_cast<Words>(*static_cast<const Scalar<Words>*>(from));
}

template <class Words>
__device__ __forceinline__ void store_words(void* to, Words words) {
  *static_cast<Scalar<Words>*>(to) = std::bit_cast<Scalar<Words>>(words);
}

/// Two floats rounded to the 16-bit type T (nearest, ties to even), the first in the lower half.
template <class T>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  static_assert(sizeof(T) == 2);
#ifdef __CUDACC__
  // One instruction.
  if constexpr (std::is_same_v<T, bfloat16>) return std::bit_cast<uint32_t>(static_cast<__nv_bfloat162_raw>(__floats2bfloat162_rn(low, high)));
  return std::bit_cast<uint32_t>(static_cast<__half2_raw>(__floats2half2_rn(low, high)));
#else
  return static_cast<uint32_t>(T(low).bits) | static_cast<uint32_t>(T(high).bits) << 16;
#endif
}

template <class T>
__device__ __forceinline__ void unpack_pair(uint32_t pair, float& low, float& high) {
  static_assert(sizeof(T) == 2);
  if constexpr (std::is_same_v<T, bfloat16>) {
    low = std::bit_cast<float>(pair << 16);
    high = std::bit_cast<float>(pair & 0xFFFF0000);
  } else {
    low = to_float(std::bit_cast<T>(static_cast<uint16_t>(pair)));
    high = to_float(std::bit_cast<T>(static_cast<uint16_t>(pair >> 16)));
  }
}

/// `value` rounded to T.
template <class T>
__device__ __forceinline__ float rounded(float value) {
  return to_float(from_float<T>(value));
}

template <class T>
__device__ __forceinline__ void unpack(uint4 words, float (&to)[kVector<T>]) {
  if constexpr (std::is_same_v<T, float>) {
    to[0] = std::bit_cast<float>(words.x), to[1] = std::bit_cast<float>(words.y);
    to[2] = std::bit_cast<float>(words.z), to[3] = std::bit_cast<float>(words.w);
  } else {
    unpack_pair<T>(words.x, to[0], to[1]), unpack_pair<T>(words.y, to[2], to[3]);
    unpack_pair<T>(words.z, to[4], to[5]), unpack_pair<T>(words.w, to[6], to[7]);
  }
}
template <class T>
__device__ __forceinline__ void unpack(uint2 words, float (&to)[4]) {
  unpack_pair<T>(words.x, to[0], to[1]), unpack_pair<T>(words.y, to[2], to[3]);
}
template <class T>
__device__ __forceinline__ void pack(const float (&from)[kVector<T>], uint4& to) {
  if constexpr (std::is_same_v<T, float>) {
    to = {std::bit_cast<uint32_t>(from[0]), std::bit_cast<uint32_t>(from[1]), std::bit_cast<uint32_t>(from[2]), std::bit_cast<uint32_t>(from[3])};
  } else {
    to = {pack_pair<T>(from[0], from[1]), pack_pair<T>(from[2], from[3]), pack_pair<T>(from[4], from[5]), pack_pair<T>(from[6], from[7])};
  }
}
template <class T>
__device__ __forceinline__ void pack(const float (&from)[4], uint2& to) {
  to = {pack_pair<T>(from[0], from[1]), pack_pair<T>(from[2], from[3])};
}

/// N elements (16 bytes, 8 bytes or one element) in their memory format. Threads keep elements for reuse so: 16-bit types take half the registers.
template <class T, int N>
struct Packed {
  static_assert(N * sizeof(T) == 16 || N * sizeof(T) == 8);
  using Words = std::conditional_t<N * sizeof(T) == 16, uint4, uint2>;
  Words words;

  __device__ __forceinline__ void load(const T* from) { words = load_words<Words>(from); }
  __device__ __forceinline__ void store(T* to) const { store_words(to, words); }
  __device__ __forceinline__ void get(float (&to)[N]) const { unpack<T>(words, to); }
  __device__ __forceinline__ void set(const float (&from)[N]) { pack<T>(from, words); }
};
template <class T>
struct Packed<T, 1> {
  T value;

  __device__ __forceinline__ void load(const T* from) { value = *from; }
  __device__ __forceinline__ void store(T* to) const { *to = value; }
  __device__ __forceinline__ void get(float (&to)[1]) const { to[0] = to_float(value); }
  __device__ __forceinline__ void set(const float (&from)[1]) { value = from_float<T>(from[0]); }
};

template <int N, class T>
__device__ __forceinline__ void load_vector(const T* from, float (&to)[N]) {
  constexpr int kWidth = N < kVector<T> ? N : kVector<T>;
  static_assert(N % kWidth == 0);
#pragma unroll
  for (int v = 0; v < N; v += kWidth) {
    Packed<T, kWidth> packed;
    packed.load(from + v);
    float part[kWidth];
    packed.get(part);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) to[v + i] = part[i];
  }
}

template <int N, class T>
__device__ __forceinline__ void store_vector(T* to, const float (&from)[N]) {
  constexpr int kWidth = N < kVector<T> ? N : kVector<T>;
  static_assert(N % kWidth == 0);
#pragma unroll
  for (int v = 0; v < N; v += kWidth) {
    float part[kWidth];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) part[i] = from[v + i];
    Packed<T, kWidth> packed;
    packed.set(part);
    packed.store(to + v);
  }
}

template <int N, class T>
__device__ __forceinline__ void load_vector(const T* from, int64_t count, float (&to)[N]) {
  if (count >= N) return load_vector(from, to);
#pragma unroll
  for (int i = 0; i < N; ++i) to[i] = i < count ? to_float(from[i]) : 0.0F;
}

template <int N, class T>
__device__ __forceinline__ void store_vector(T* to, int64_t count, const float (&from)[N]) {
  if (count >= N) return store_vector(to, from);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < count) to[i] = from_float<T>(from[i]);
  }
}

}  // namespace trireme::cuda
