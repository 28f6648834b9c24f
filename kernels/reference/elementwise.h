#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "kernels/core/rng.h"
#include "kernels/ops/elementwise.h"

namespace trireme::reference {

template <class T>
void fill(double value, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(value);
}

template <class From, class To>
void copy(const From* from, To* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
}

template <class T>
void add(const T* a, const T* b, T* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(a[i] + b[i]);
}

template <class T>
void scale(const T* x, double factor, T* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = static_cast<T>(factor * x[i]);
}

template <class T, class Wide>
void accumulate(const T* x, Wide* out, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<Wide>(out[i] + static_cast<Wide>(x[i]));
}

/// The bits of floating-point numbers without their sign are ordered as their magnitudes are, with NaN above infinity. Compilers vectorise this loop.
template <class T>
void max_absolute(const T* x, int64_t count, double* largest) {
  using Bits = std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>;
  constexpr Bits kMagnitude = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
  Bits most = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, x + i, sizeof bits);
    bits = static_cast<Bits>(bits & kMagnitude);
    most = bits > most ? bits : most;
  }
  T found;
  std::memcpy(&found, &most, sizeof found);
  const auto value = static_cast<double>(found);
  if (std::isnan(value) || value > *largest) *largest = value;  // false for a NaN that is there already
}

/// y = x / (1-p) if the draw is at least p, else 0
template <class T>
void dropout(const T* x, const DropoutMask& mask, T* y, int64_t count) {
  const double scale = 1 / (1 - mask.probability);
  for (int64_t i = 0; i < count; ++i) {
    const bool keep = random_uniform32(mask.key, mask.first_index + static_cast<uint64_t>(i), mask.step) >= mask.probability;
    y[i] = static_cast<T>(keep ? x[i] * scale : 0.0);
  }
}

template <class T>
void fill_normal(uint64_t key, double standard_deviation, int64_t global_columns, int64_t row_begin, int64_t column_begin, T* out, int64_t rows,
                 int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t index = (row_begin + r) * global_columns + column_begin + c;
      out[r * columns + c] = static_cast<T>(standard_deviation * random_normal(key, static_cast<uint64_t>(index)));
    }
  }
}

}  // namespace trireme::reference
