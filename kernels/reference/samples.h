#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

namespace trireme::reference {

template <class T>
double inner_product(const T* a, const T* b, int64_t first, int64_t last) {
  double sum = 0;
  for (int64_t i = first; i < last; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

/// The squared norm of the embedding's gradient from `rows` rows: the rows of one token add up before they are squared.
template <class T>
double embedding_squares(const int32_t* tokens, const T* dy, int64_t rows, int64_t columns, int64_t vocab_begin, int64_t vocab_rows) {
  std::vector<int64_t> order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), 0);
  std::erase_if(order, [&](int64_t row) { return tokens[row] < vocab_begin || tokens[row] >= vocab_begin + vocab_rows; });
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return tokens[a] < tokens[b]; });
  std::vector<double> sums(static_cast<size_t>(columns));
  double squares = 0;
  for (size_t i = 0; i < order.size();) {
    const int32_t token = tokens[order[i]];
    std::fill(sums.begin(), sums.end(), 0.0);
    for (; i < order.size() && tokens[order[i]] == token; ++i)
      for (int64_t c = 0; c < columns; ++c) sums[static_cast<size_t>(c)] += static_cast<double>(dy[order[i] * columns + c]);
    for (const double sum : sums) squares += sum * sum;
  }
  return squares;
}

inline void clip_factors(const double* squares, int64_t samples, double limit, bool powers_of_two, double* factors) {
  for (int64_t s = 0; s < samples; ++s) {
    const double norm = std::sqrt(squares[s]);
    factors[s] = !std::isfinite(norm) ? std::numeric_limits<double>::quiet_NaN() : norm > limit ? limit / norm : 1.0;
    if (powers_of_two && factors[s] < 1) factors[s] = std::exp2(std::floor(std::log2(factors[s])));
  }
}

template <class T>
void scale_sample_rows(T* x, int64_t columns, int64_t rows_per_sample, int64_t first_row, const double* factors, int64_t first, int64_t last) {
  for (int64_t m = first; m < last; ++m) {
    using Wide = std::conditional_t<sizeof(T) == 8, double, float>;
    const auto factor = static_cast<Wide>(factors[(first_row + m) / rows_per_sample]);
    if (factor == 1) continue;
    for (int64_t c = 0; c < columns; ++c) x[m * columns + c] = static_cast<T>(static_cast<Wide>(x[m * columns + c]) * factor);
  }
}

}  // namespace trireme::reference
