#pragma once
// The sums of tensor cores.
#include <algorithm>
#include <cmath>

#include "tests/cuda_sim/device_thread.h"

namespace cuda_sim {

using Row = float __attribute__((vector_size(32)));  // 8 floats

/// sum + the products of eight columns, no more exact than tensor cores of sm_80 and newer: each term is truncated to a multiple of 2^-24 of the highest
/// bit of the largest term, and the sum to fp32 (Fasi, Higham, Mikaitis and Pranesh 2021, doi:10.7717/peerj-cs.330).
inline float truncated_sum(float sum, const float* a, const Row* b, unsigned column) {
  double terms[9] = {sum}, largest = std::abs(sum);
  for (unsigned k = 0; k < 8; ++k) {
    terms[k + 1] = static_cast<double>(a[k]) * b[k][column];
    largest = std::max(largest, std::abs(terms[k + 1]));
  }
  double total = 0;
  if (largest == 0 || !std::isfinite(largest)) {
    for (const double term : terms) total += term;
    return static_cast<float>(total);
  }
  // 2^-24 of its highest bit: products of two fp32 numbers are normal in double, so the bits of the exponent are those of a power of two.
  const double unit = __builtin_bit_cast(double, __builtin_bit_cast(uint64_t, largest) & uint64_t{0x7FF} << 52) * 0x1p-24, units = 1 / unit;
  for (const double term : terms) total += std::trunc(term * units);
  const auto rounded = static_cast<float>(total * unit);
  const bool away = std::isfinite(rounded) && std::abs(rounded) > std::abs(total * unit);
  return away ? std::nextafter(rounded, 0.0F) : rounded;
}

/// sum += a b, for 16 columns of a, with the rounding of Options::hardware_rounding.
inline void add_product(Row& sum, const float (&a)[16], const Row (&b)[16]) {
  if (hardware_rounding) {
    for (unsigned k = 0; k < 16; k += 8)
      for (unsigned j = 0; j < 8; ++j) sum[j] = truncated_sum(sum[j], a + k, b + k, j);
  } else {
    Row total = sum;
    for (unsigned k = 0; k < 16; ++k) total += a[k] * b[k];
    sum = total;
  }
}

}  // namespace cuda_sim
