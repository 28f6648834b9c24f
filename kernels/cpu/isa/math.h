#pragma once
// Elementary functions that vectorise, unlike calls of libm without -ffast-math.
#include <cstdint>

#include "kernels/core/gelu.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

inline float root(float x) { return __builtin_sqrtf(x); }

/// e^x in fp32, error below 1.25 ulp over the whole range; subnormal results are rounded once more.
/// -infinity and x < -104 give 0, +infinity and x > 88.73 give infinity, NaN gives NaN.
/// x = n ln2 + r with |r| <= ln2/2; e^r by its Taylor series to r^7 (truncation below 0.1 ulp); times 2^n in two factors, each a normal number.
inline float simd_exp(float x) {
  constexpr float kLog2E = 1.44269504088896341F;
  constexpr float kLn2High = 0.693359375F;  // 10 bits: n * kLn2High is exact
  constexpr float kLn2Low = -2.12194440054690583e-4F;
  constexpr float kRound = 12582912.0F;  // 1.5 * 2^23: adding it rounds to an integer, kept in the low bits
  const float magnitude = __builtin_fabsf(x);
  x = __builtin_copysignf(magnitude > 104.0F ? 104.0F : magnitude, x);  // keeps NaN; with two comparisons GCC threads branches and does not vectorise
  const float shifted = x * kLog2E + kRound;
  const float n = shifted - kRound;
  const float r = (x - n * kLn2High) - n * kLn2Low;
  float p = 1.0F / 5040.0F;
  p = p * r + 1.0F / 720.0F;
  p = p * r + 1.0F / 120.0F;
  p = p * r + 1.0F / 24.0F;
  p = p * r + 1.0F / 6.0F;
  p = p * r + 0.5F;
  p = p * r + 1.0F;
  p = p * r + 1.0F;
  const int32_t exponent = static_cast<int32_t>(__builtin_bit_cast(uint32_t, shifted) - __builtin_bit_cast(uint32_t, kRound));
  const int32_t half = exponent >> 1;
  const float scale_a = __builtin_bit_cast(float, static_cast<uint32_t>(half + 127) << 23);
  const float scale_b = __builtin_bit_cast(float, static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * scale_a * scale_b;
}

/// 1 / (1 + 2^-x), relative error below 2^-22: sigmoid(x) is sigmoid2(x log2(e)).   0 below -125, 1 above 125, NaN for NaN.
/// 2^-x = 2^n 2^f with |f| <= 1/2; 2^f by a minimax polynomial of relative error 1.1e-7 that is 1 at f = 0; n is added to its exponent.
inline float sigmoid2(float x) {
  constexpr float kRound = 12582912.0F;  // as in simd_exp
  constexpr float kLast = 125.0F;        // 2^n and 1 + 2^n stay normal numbers
  const float shifted = kRound - x;
  const float f = (kRound - shifted) - x;
  float p = 1.32647343e-3F;
  p = p * f + 9.67150732e-3F;
  p = p * f + 5.55073368e-2F;
  p = p * f + 2.40222422e-1F;
  p = p * f + 6.93146978e-1F;
  p = p * f + 1.0F;
  const float power = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, p) + (__builtin_bit_cast(uint32_t, shifted) << 23));
  const float s = 1.0F / (1.0F + power);
  const float below = x < -kLast ? 0.0F : s;
  return x > kLast ? 1.0F : below;
}

/// Phi(x), the share of the normal distribution below x, given gauss = e^(-x^2/2).
inline float normal_cdf(float x, float gauss) {
  const float t = 1.0F / (1.0F + 0.5F * kRootHalf * __builtin_fabsf(x));
  const float u = (t - kErfcMiddle) * (1.0F / kErfcHalf);
  float r = kErfc[9];
  r = r * u + kErfc[8];
  r = r * u + kErfc[7];
  r = r * u + kErfc[6];
  r = r * u + kErfc[5];
  r = r * u + kErfc[4];
  r = r * u + kErfc[3];
  r = r * u + kErfc[2];
  r = r * u + kErfc[1];
  r = r * u + kErfc[0];
  const float tail = 0.5F * gauss * t * r;  // Phi(-|x|)
  return x < 0.0F ? tail : 1.0F - tail;
}

/// Maximum of x[0..count), -infinity if count is 0. NaN is ignored here; it appears in the sum of exponentials that follows.
template <class T>
inline float max_of(const T* x, int64_t count) {
  float largest = -__builtin_inff();
#pragma omp simd reduction(max : largest)
  for (int64_t i = 0; i < count; ++i) largest = static_cast<float>(x[i]) > largest ? static_cast<float>(x[i]) : largest;
  return largest;
}

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
