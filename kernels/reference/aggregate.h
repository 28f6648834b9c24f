#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace trireme::reference {

/// The values of column k, ascending.
template <class T>
void sort_column(const T* copies, int64_t columns, std::span<const int> rows, int64_t k, std::vector<T>& values) {
  values.clear();
  for (const int row : rows) values.push_back(copies[row * columns + k]);
  std::sort(values.begin(), values.end());
}

template <class T>
double mean_of(const std::vector<T>& values, int64_t first, int64_t count) {
  double sum = 0;
  for (int64_t i = first; i < first + count; ++i) sum += static_cast<double>(values[static_cast<size_t>(i)]);
  return sum / static_cast<double>(count);
}

/// Columns [first, last).
template <class T>
void trimmed_mean(const T* copies, int64_t columns, std::span<const int> rows, int64_t trimmed, int64_t first, int64_t last, T* out) {
  std::vector<T> values;
  for (int64_t k = first; k < last; ++k) {
    sort_column(copies, columns, rows, k, values);
    out[k] = static_cast<T>(mean_of(values, trimmed, std::ssize(values) - 2 * trimmed));
  }
}

/// The nearest values are neighbours in ascending order: the range grows from the median to the nearer side.
template <class T>
void mean_near_median(const T* copies, int64_t columns, std::span<const int> rows, int64_t nearest, int64_t first, int64_t last, T* out) {
  std::vector<T> values;
  for (int64_t k = first; k < last; ++k) {
    sort_column(copies, columns, rows, k, values);
    const int64_t size = std::ssize(values), middle = (size - 1) / 2;
    const double median = mean_of(values, middle, size - 2 * middle);
    int64_t low = middle, high = middle + 1;  // the range is [low, high)
    const auto at = [&](int64_t i) { return static_cast<double>(values[static_cast<size_t>(i)]); };
    while (high - low < nearest) {
      const bool down = high == size || (low > 0 && median - at(low - 1) <= at(high) - median);
      down ? --low : ++high;
    }
    out[k] = static_cast<T>(mean_of(values, low, nearest));
  }
}

template <class T>
void weighted_mean(const T* copies, int64_t columns, std::span<const int> rows, std::span<const double> weights, const T* center, int64_t first,
                   int64_t last, T* out) {
  for (int64_t k = first; k < last; ++k) {
    const auto from = static_cast<double>(center[k]);
    double sum = from;
    for (size_t i = 0; i < rows.size(); ++i)
      if (weights[i] != 0) sum += weights[i] * (static_cast<double>(copies[rows[i] * columns + k]) - from);
    out[k] = static_cast<T>(sum);
  }
}

/// The sum of the squares of a row.
template <class T>
double squares(const T* row, int64_t count) {
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) sum += static_cast<double>(row[k]) * static_cast<double>(row[k]);
  return sum;
}

template <class T>
double centered_product(const T* a, const T* b, const T* center, int64_t count) {
  double sum = 0;
  for (int64_t k = 0; k < count; ++k) {
    const auto from = static_cast<double>(center[k]);
    sum += (static_cast<double>(a[k]) - from) * (static_cast<double>(b[k]) - from);
  }
  return sum;
}

template <class T>
void blend(double share, const T* from, T* to, int64_t count) {
  for (int64_t k = 0; k < count; ++k)
    to[k] = static_cast<T>(static_cast<double>(to[k]) + share * (static_cast<double>(from[k]) - static_cast<double>(to[k])));
}

}  // namespace trireme::reference
