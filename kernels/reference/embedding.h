#pragma once
#include <cstdint>

namespace trireme::reference {

/// y[m] = w[tokens[m] - vocab_begin], or 0 if another rank has that row
template <class T>
void embedding_forward(const int32_t* tokens, const T* w, int64_t vocab_begin, int64_t vocab_rows, T* y, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t row = tokens[m] - vocab_begin;
    const bool local = row >= 0 && row < vocab_rows;
    for (int64_t d = 0; d < columns; ++d) y[m * columns + d] = local ? w[row * columns + d] : static_cast<T>(0.0F);
  }
}

/// dw[tokens[m] - vocab_begin] += dy[m]
template <class T, class Gradient>
void embedding_backward(const int32_t* tokens, const T* dy, int64_t vocab_begin, int64_t vocab_rows, Gradient* dw, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t row = tokens[m] - vocab_begin;
    if (row < 0 || row >= vocab_rows) continue;
    for (int64_t d = 0; d < columns; ++d) dw[row * columns + d] += dy[m * columns + d];
  }
}

/// y[m] += w[(first_row + m) % sequence_length - starts[m]]. `starts`: of Documents, or null for zeros.
template <class T>
void position_forward(const T* w, int64_t first_row, int64_t sequence_length, const int32_t* starts, T* y, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t position = (first_row + m) % sequence_length - (starts == nullptr ? 0 : starts[m]);
    for (int64_t d = 0; d < columns; ++d) y[m * columns + d] = static_cast<T>(y[m * columns + d] + w[position * columns + d]);
  }
}

/// dw[(first_row + m) % sequence_length - starts[m]] += dy[m]
template <class T, class Gradient>
void position_backward(const T* dy, int64_t first_row, int64_t sequence_length, const int32_t* starts, Gradient* dw, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m) {
    const int64_t position = (first_row + m) % sequence_length - (starts == nullptr ? 0 : starts[m]);
    for (int64_t d = 0; d < columns; ++d) dw[position * columns + d] += dy[m * columns + d];
  }
}

}  // namespace trireme::reference
