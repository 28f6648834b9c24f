#pragma once
#include <cstdint>

namespace trireme::reference {

/// Row strides in elements.
template <class T>
void copy_columns(const T* from, int64_t from_stride, T* to, int64_t to_stride, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t c = 0; c < columns; ++c) to[m * to_stride + c] = from[m * from_stride + c];
}

/// x without gaps between its rows, of `columns` elements each.
template <class T>
void add_columns(const T* x, T* to, int64_t to_stride, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m)
    for (int64_t c = 0; c < columns; ++c) to[m * to_stride + c] = static_cast<T>(to[m * to_stride + c] + x[m * columns + c]);
}

}  // namespace trireme::reference
