#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

namespace trireme::reference {

/// Subtracts from column j its parts along the orthonormal columns before it.
template <class T>
void subtract_projections(T* p, int64_t rows, int64_t rank, int64_t j) {
  for (int64_t k = 0; k < j; ++k) {
    double dot = 0;
    for (int64_t m = 0; m < rows; ++m) dot += static_cast<double>(p[m * rank + k]) * static_cast<double>(p[m * rank + j]);
    for (int64_t m = 0; m < rows; ++m)
      p[m * rank + j] = static_cast<T>(static_cast<double>(p[m * rank + j]) - dot * static_cast<double>(p[m * rank + k]));
  }
}

template <class T>
double column_norm(const T* p, int64_t rows, int64_t rank, int64_t j) {
  double squares = 0;
  for (int64_t m = 0; m < rows; ++m) squares += static_cast<double>(p[m * rank + j]) * static_cast<double>(p[m * rank + j]);
  return std::sqrt(squares);
}

/// Modified Gram-Schmidt, each column twice: the second pass removes what rounding has left of the columns before it. What is not finite stays so.
template <class T>
void orthonormalise(T* p, int64_t rows, int64_t rank) {
  constexpr double kRounding = 16 * static_cast<double>(std::numeric_limits<T>::epsilon());
  for (int64_t j = 0; j < rank; ++j) {
    for (int pass = 0; pass < 2; ++pass) {
      const double before = column_norm(p, rows, rank, j);
      subtract_projections(p, rows, rank, j);
      const double norm = column_norm(p, rows, rank, j);
      const bool depends = std::isfinite(before) && norm <= kRounding * before;
      for (int64_t m = 0; m < rows; ++m) p[m * rank + j] = depends ? T{0} : static_cast<T>(static_cast<double>(p[m * rank + j]) / norm);
    }
  }
}

/// out[i] += scale * (p q)[begin + i]
template <class T>
void add_product(double scale, const T* p, const T* q, int64_t rank, int64_t columns, int64_t begin, int64_t count, T* out) {
  std::vector<double> sums(static_cast<size_t>(columns));
  for (int64_t i = begin; i < begin + count;) {
    const int64_t row = i / columns, first = i % columns, length = std::min(columns - first, begin + count - i);
    std::fill_n(sums.begin(), length, 0.0);
    for (int64_t k = 0; k < rank; ++k) {
      const double factor = scale * static_cast<double>(p[row * rank + k]);
      for (int64_t c = 0; c < length; ++c) sums[static_cast<size_t>(c)] += factor * static_cast<double>(q[k * columns + first + c]);
    }
    for (int64_t c = 0; c < length; ++c) out[i - begin + c] = static_cast<T>(static_cast<double>(out[i - begin + c]) + sums[static_cast<size_t>(c)]);
    i += length;
  }
}

/// to[k] = from[k] for the rows that are not zero
template <class T>
void copy_nonzero_rows(const T* from, T* to, int64_t rows, int64_t columns) {
  for (int64_t k = 0; k < rows; ++k)
    if (std::any_of(from + k * columns, from + (k + 1) * columns, [](T x) { return x != 0; }))
      std::copy_n(from + k * columns, columns, to + k * columns);
}

}  // namespace trireme::reference
