#pragma once
// Packs rows of tensors into operands of attention_products.h, and unpacks blocks of sums into rows of tensors: only layout and rounding.
#include "kernels/cpu/isa/attention_products.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

inline int64_t round_up(int64_t count, int64_t unit) { return (count + unit - 1) / unit * unit; }

/// Bump allocator: divides a thread's workspace into arrays that begin on cache lines. Starting from null, it only measures.
class WorkspaceAllocator {
 public:
  explicit WorkspaceAllocator(void* begin) : begin_(reinterpret_cast<uintptr_t>(begin)) {}
  template <class Item>
  Item* take(int64_t count) {
    const uintptr_t taken = begin_ + static_cast<uintptr_t>(used_);
    used_ += round_up(count * static_cast<int64_t>(sizeof(Item)), 64);
    return reinterpret_cast<Item*>(taken);
  }
  int64_t used() const { return used_; }

 private:
  uintptr_t begin_;
  int64_t used_ = 0;
};

typedef uint16_t Half __attribute__((may_alias));

/// Writes one row [padded] of elements: from [count], then zeros.
template <class T>
inline void pack_row(const T* from, int64_t count, float* to, int64_t padded) {
#pragma omp simd
  for (int64_t h = 0; h < count; ++h) to[h] = static_cast<float>(from[h]);
  for (int64_t h = count; h < padded; ++h) to[h] = 0;
}
inline void pack_row(const bfloat16* from, int64_t count, PairWord* words, int64_t padded) {
  Half* const to = reinterpret_cast<Half*>(words);
#pragma omp simd
  for (int64_t h = 0; h < count; ++h) to[h] = from[h].bits;
  for (int64_t h = count; h < padded; ++h) to[h] = 0;
}

/// to [padded_rows, padded words], with k along the rows.
template <class Engine, class T>
void pack_rows(const T* from, int64_t stride, int64_t rows, int64_t count, typename Engine::Word* to, int64_t padded_rows, int64_t padded) {
  const int64_t words = padded / Engine::kDepth;
  for (int64_t r = 0; r < rows; ++r) pack_row(from + r * stride, count, to + r * words, padded);
  for (int64_t i = rows * words; i < padded_rows * words; ++i) to[i] = 0;
}

/// Packs the rows [rows, padded] with k along the columns: to [rows words, padded]. In fp32 this is the same layout, and nothing is written.
inline void spread_across(const float*, int64_t, int64_t, float*) {}
inline void spread_across(const PairWord* packed, int64_t rows, int64_t padded, PairWord* to) {
  const Half* const from = reinterpret_cast<const Half*>(packed);
  for (int64_t r = 0; r < rows; r += 2) {
    const Half* const even = from + r * padded;
    const Half* const odd = even + padded;
    PairWord* const row = to + r / 2 * padded;
#pragma omp simd
    for (int64_t h = 0; h < padded; ++h) row[h] = static_cast<uint32_t>(even[h]) | static_cast<uint32_t>(odd[h]) << 16;
  }
}
/// The result of spread_across(): in fp32 its input.
inline const float* across_rows(const float* packed, const float*) { return packed; }
inline const PairWord* across_rows(const PairWord*, const PairWord* spread) { return spread; }

/// Rounds like bfloat16, branch-free.
inline uint32_t rounded(float x) {
  const uint32_t word = __builtin_bit_cast(uint32_t, x);
  const uint32_t finite = (word + 0x7FFF + (word >> 16 & 1)) >> 16, nan = word >> 16 | 0x40;
  return (word & 0x7FFFFFFF) > 0x7F800000 ? nan : finite;
}
inline void assign(float& to, float x) { to = x; }
inline void assign(bfloat16& to, float x) { to.bits = static_cast<uint16_t>(rounded(x)); }
inline void assign(float16& to, float x) { to.bits = static_cast<float16>(x).bits; }

/// Writes x to row `row` of an operand with k along the rows, from `lane` on.
inline void store_along(float* operand, int64_t stride, int64_t row, int64_t lane, Vector x) { store(operand + row * stride + lane, x); }
inline void store_along(PairWord* operand, int64_t stride, int64_t row, int64_t lane, Vector x) {
  Half* const to = reinterpret_cast<Half*>(operand + row * stride) + lane;
#ifdef __AVX512BF16__
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
#else
  for (int l = 0; l < kLanes; ++l) to[l] = static_cast<uint16_t>(rounded(x[l]));
#endif
}

/// Writes rows `row` and `row` + 1 of an operand with k along the columns, from `lane` on.
inline void store_across(float* operand, int64_t stride, int64_t row, int64_t lane, Vector even, Vector odd) {
  store(operand + row * stride + lane, even);
  store(operand + (row + 1) * stride + lane, odd);
}
inline void store_across(PairWord* operand, int64_t stride, int64_t row, int64_t lane, Vector even, Vector odd) {
  PairWord* const to = operand + row / 2 * stride + lane;
#ifdef __AVX512BF16__
  const __m512i order =
      _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i halves = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(odd, even));
  _mm512_store_si512(to, _mm512_permutexvar_epi16(order, halves));
#else
  for (int l = 0; l < kLanes; ++l) to[l] = rounded(even[l]) | rounded(odd[l]) << 16;
#endif
}

/// to [rows, count], with a row stride, = factor * from [rows, padded].
template <class T>
void unpack_rows(const float* from, int64_t padded, float factor, int64_t rows, int64_t count, T* to, int64_t stride) {
  for (int64_t r = 0; r < rows; ++r) {
    const float* const source = from + r * padded;
    T* const row = to + r * stride;
#pragma omp simd
    for (int64_t h = 0; h < count; ++h) assign(row[h], source[h] * factor);
  }
}

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
