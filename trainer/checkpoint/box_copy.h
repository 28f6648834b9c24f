#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/core/dtype.h"
#include "parallel/param.h"

namespace trireme {

/// A matrix in a file, or the part of it that begins at `start`. Element (row, column) is at `data` + ((row - start[0]) * row_stride +
/// (column - start[1]) * column_stride) elements. `data` need not be aligned. One of the two strides is 1.
struct StoredMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  std::array<int64_t, 2> start{0, 0};

  int64_t offset(int64_t row, int64_t column) const { return (row - start[0]) * row_stride + (column - start[1]) * column_stride; }
  /// Byte range [begin, end) relative to `data` that spans the first to the last element of a non-empty box.
  std::array<int64_t, 2> bytes_of(const Box& box) const;
};

constexpr bool is_floating(DType dtype) { return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16; }

/// The intersection of two boxes; an extent is 0 or negative if they are disjoint.
Box intersection(const Box& a, const Box& b);

/// True if `box` lies within a matrix of this shape.
bool lies_in(const Box& box, const std::array<int64_t, 2>& shape);

/// Copies `box` of the matrix into `out`, the row-major memory of `out_box`, which must contain `box`. Converts between floating-point dtypes,
/// rounding to nearest; other dtypes must be equal on both sides.
void copy_box(const StoredMatrix& from, const Box& box, const Box& out_box, DType out_dtype, std::byte* out);

}  // namespace trireme
