#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "parallel/param.h"

namespace trireme {

/// A matrix, or the part of it from `start` on, in a file: element (row, column) lies (row - start[0]) * row_stride + (column - start[1]) * column_stride
/// elements behind `data`, which need not be aligned. One of the strides is 1.
struct StoredMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  std::array<int64_t, 2> start{0, 0};

  int64_t offset(int64_t row, int64_t column) const { return (row - start[0]) * row_stride + (column - start[1]) * column_stride; }
  /// Bytes behind `data` from the first element of a box that is not empty to the end of its last.
  std::array<int64_t, 2> bytes_of(const Box& box) const;
};

constexpr bool is_floating(DType dtype) { return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

/// The common part of two boxes; an extent of 0 or less where there is none.
Box intersection(const Box& a, const Box& b);

/// Whether `box` lies in a matrix of this shape.
bool lies_in(const Box& box, const std::array<int64_t, 2>& shape);

/// Copies `box` of the matrix to the same place of `out`, the row-major memory of `out_box`, which holds it. Floating dtypes are converted, wider ones
/// rounded to nearest; of any other both sides must be alike.
void copy_box(const StoredMatrix& from, const Box& box, const Box& out_box, DType out_dtype, std::byte* out);

}  // namespace trireme
