#pragma once
// fp32 vectors of the full width of the level, for loops whose sums must stay in registers. Vectors are aligned to their size.
#include <cstdint>
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace trireme::cpu::TRIREME_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif
constexpr int kLanes = kVectorBytes / 4;
// may_alias: words of a workspace are read as vectors.
typedef float Vector __attribute__((vector_size(kVectorBytes), may_alias));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes), may_alias));

template <class Word>
inline Vector load(const Word* from) {
  static_assert(sizeof(Word) == 4);
  return *reinterpret_cast<const Vector*>(from);
}
template <class Word>
inline void store(Word* to, Vector v) {
  static_assert(sizeof(Word) == 4);
  *reinterpret_cast<Vector*>(to) = v;
}
#ifdef __AVX512F__
constexpr __mmask16 kAll = 0xFFFF;  // GCC 12 warns that unmasked intrinsics use uninitialised values (bug 105593)
#endif
inline Vector broadcast(float x) { return x - Vector{}; }

/// Element-wise maximum; b where a is NaN.
inline Vector larger(Vector a, Vector b) {
#if defined(__AVX512F__)
  return _mm512_maskz_max_ps(kAll, a, b);
#elif defined(__AVX2__)
  return _mm256_max_ps(a, b);
#elif defined(__SSE2__)
  return _mm_max_ps(a, b);
#else
  return a > b ? a : b;
#endif
}

/// 2^t in fp32, error below 1.25 ulp; 0 below t = -126 (no subnormal results, which are slow on many processors), infinity from t = 128 (127.5 below
/// AVX-512), NaN for NaN.
/// t = n + r with |r| <= 1/2; 2^r by a minimax polynomial of relative error 2e-8, with fp32 coefficients.
inline Vector exp2_of(Vector t) {
  const auto polynomial = [](Vector r) {
    return (((((1.53533634e-4F * r + 1.3398875e-3F) * r + 9.61843692e-3F) * r + 5.55033237e-2F) * r + 0.240226477F) * r + 0.693147182F) * r + 1.0F;
  };
#if defined(__AVX512F__)
  const __mmask16 normal = _mm512_cmp_ps_mask(t, _mm512_set1_ps(-126.0F), _CMP_NLT_UQ);
  const Vector capped = _mm512_maskz_min_ps(kAll, _mm512_set1_ps(128.0F), t);  // keeps NaN
  const Vector n = _mm512_maskz_roundscale_ps(kAll, capped, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  return _mm512_maskz_scalef_ps(normal, polynomial(capped - n), n);
#else
  constexpr float kRound = 12582912.0F + 127.0F;  // 1.5 * 2^23: adding it rounds to an integer, n + 127 in the low bits
  const Vector low = broadcast(-126.0F), high = broadcast(128.0F);
  Vector x = t < low ? low : t;  // keeps NaN
  x = x > high ? high : x;
  const Vector shifted = x + kRound;
  const Vector scale = reinterpret_cast<Vector>(reinterpret_cast<IntVector>(shifted) << 23);
  const Vector result = polynomial(x - (shifted - kRound)) * scale;
  return t < low ? Vector{} : result;
#endif
}

/// One step of a transpose: swaps the lanes of a whose index has the bit kDistance with the lanes of b whose index does not.
template <int kDistance>
inline void exchange(Vector& a, Vector& b) {
#ifdef __clang__  // it lacks __builtin_shuffle, and turns these copies into the same instructions
  Vector first{}, second{};
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) {
    first[l] = (l & kDistance) == 0 ? a[l] : b[l - kDistance];
    second[l] = (l & kDistance) == 0 ? a[l + kDistance] : b[l];
  }
  b = second;
#else
  IntVector upper{}, lower{};  // lanes of a followed by b
#pragma GCC unroll 16
  for (int l = 0; l < kLanes; ++l) {
    upper[l] = (l & kDistance) == 0 ? l : kLanes + l - kDistance;
    lower[l] = (l & kDistance) == 0 ? l + kDistance : kLanes + l;
  }
  const Vector first = __builtin_shuffle(a, b, upper);
  b = __builtin_shuffle(a, b, lower);
#endif
  a = first;
}

/// Transposes a square of kLanes x kLanes words: swaps the off-diagonal halves, then quarters and so on.
template <int kDistance>
inline void transpose_square(Vector (&rows)[kLanes]) {
  if constexpr (kDistance >= 1) {
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if ((i & kDistance) == 0) exchange<kDistance>(rows[i], rows[i + kDistance]);
    }
    transpose_square<kDistance / 2>(rows);
  }
}

/// to [columns, rows] = transpose of from [rows, columns], words of 4 bytes at strides; rows and columns multiples of 16.
template <class From, class To>
void transpose(int64_t rows, int64_t columns, const From* from, int64_t from_stride, To* to, int64_t to_stride) {
  for (int64_t r = 0; r < rows; r += kLanes) {
    for (int64_t c = 0; c < columns; c += kLanes) {
      Vector square[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) square[i] = load(from + (r + i) * from_stride + c);
      transpose_square<kLanes / 2>(square);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) store(to + (c + i) * to_stride + r, square[i]);
    }
  }
}

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
