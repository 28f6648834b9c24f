#pragma once
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/core/dtype.h"

namespace trireme::reference {

/// table[t] = [cos(t * frequencies[i]) for all i | sin of the same]
template <class T>
void rope_table(const std::vector<double>& frequencies, T* table, int64_t positions) {
  const auto half = static_cast<int64_t>(frequencies.size());
  for (int64_t t = 0; t < positions; ++t) {
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(t) * frequencies[static_cast<size_t>(i)];
      table[t * 2 * half + i] = static_cast<T>(std::cos(angle));
      table[t * 2 * half + half + i] = static_cast<T>(std::sin(angle));
    }
  }
}

/// Rotates each pair (a, b) = (x[i], x[i + R/2]) of the first R = `rotated` elements of a head to (a cos - b sin, b cos + a sin). `direction` (1 or
/// -1) is the sign of sin. `starts`: of Documents, or null.
template <class T>
void rope_rotate(const Accumulator<T>* table, int64_t positions, int64_t rotated, int64_t heads, int64_t head_size, double direction,
                 const int32_t* starts, T* qkv, int64_t rows, int64_t columns) {
  const int64_t half = rotated / 2;
  for (int64_t m = 0; m < rows; ++m) {
    const Accumulator<T>* cosine = table + (m % positions - (starts == nullptr ? 0 : starts[m])) * rotated;
    const Accumulator<T>* sine = cosine + half;
    for (int64_t n = 0; n < heads; ++n) {
      T* x = qkv + m * columns + n * head_size;
      for (int64_t i = 0; i < half; ++i) {
        const double a = x[i], b = x[i + half], c = cosine[i], s = direction * sine[i];
        x[i] = static_cast<T>(a * c - b * s);
        x[i + half] = static_cast<T>(b * c + a * s);
      }
    }
  }
}

}  // namespace trireme::reference
