#include "trainer/checkpoint/box_copy.h"

#include <algorithm>
#include <cstring>

namespace trireme {
namespace {

/// Converts a line of `count` elements; strides are in elements.
template <class To, class From>
void convert(std::byte* out, int64_t out_stride, const std::byte* in, int64_t in_stride, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    From value;
    std::memcpy(&value, in + i * in_stride * static_cast<int64_t>(sizeof(From)), sizeof value);
    const To converted = static_cast<To>(value);
    std::memcpy(out + i * out_stride * static_cast<int64_t>(sizeof(To)), &converted, sizeof converted);
  }
}

void copy_line(std::byte* out, DType out_dtype, int64_t out_stride, const std::byte* in, DType in_dtype, int64_t in_stride, int64_t count) {
  if (out_dtype == in_dtype && out_stride == 1 && in_stride == 1) {
    std::memcpy(out, in, static_cast<size_t>(count * size_of(in_dtype)));
    return;
  }
  dispatch_float(out_dtype, [&]<class To>(To) {
    dispatch_float(in_dtype, [&]<class From>(From) { convert<To, From>(out, out_stride, in, in_stride, count); });
  });
}

/// Copies a column-major source in strips one cache line wide, so that each line is fetched once.
void copy_transposed(const StoredMatrix& from, const std::byte* in, int64_t rows, int64_t columns, DType out_dtype, std::byte* out,
                     int64_t out_columns) {
  constexpr int64_t kStrip = 64;
  for (int64_t row = 0; row < rows; row += kStrip)
    for (int64_t column = 0; column < columns; ++column)
      copy_line(out + (row * out_columns + column) * size_of(out_dtype), out_dtype, out_columns,
                in + (row * from.row_stride + column * from.column_stride) * size_of(from.dtype), from.dtype, from.row_stride,
                std::min(kStrip, rows - row));
}

}  // namespace

std::array<int64_t, 2> StoredMatrix::bytes_of(const Box& box) const {
  const int64_t last = offset(box.start[0] + box.extent[0] - 1, box.start[1] + box.extent[1] - 1);
  return {offset(box.start[0], box.start[1]) * size_of(dtype), (last + 1) * size_of(dtype)};
}

Box intersection(const Box& a, const Box& b) {
  Box common;
  for (size_t dim = 0; dim < 2; ++dim) {
    common.start[dim] = std::max(a.start[dim], b.start[dim]);
    common.extent[dim] = std::min(a.start[dim] + a.extent[dim], b.start[dim] + b.extent[dim]) - common.start[dim];
  }
  return common;
}

bool lies_in(const Box& box, const std::array<int64_t, 2>& shape) {
  for (size_t dim = 0; dim < 2; ++dim)
    if (box.start[dim] < 0 || box.extent[dim] < 0 || box.extent[dim] > shape[dim] || box.start[dim] > shape[dim] - box.extent[dim]) return false;
  return true;
}

void copy_box(const StoredMatrix& from, const Box& box, const Box& out_box, DType out_dtype, std::byte* out) {
  const int64_t rows = box.extent[0], columns = box.extent[1], out_columns = out_box.extent[1];
  const std::byte* in = from.data + from.offset(box.start[0], box.start[1]) * size_of(from.dtype);
  out += ((box.start[0] - out_box.start[0]) * out_columns + box.start[1] - out_box.start[1]) * size_of(out_dtype);
  if (from.column_stride != 1) return copy_transposed(from, in, rows, columns, out_dtype, out, out_columns);
  if (columns == out_columns && columns == from.row_stride) return copy_line(out, out_dtype, 1, in, from.dtype, 1, rows * columns);
  for (int64_t row = 0; row < rows; ++row)
    copy_line(out + row * out_columns * size_of(out_dtype), out_dtype, 1, in + row * from.row_stride * size_of(from.dtype), from.dtype, 1, columns);
}

}  // namespace trireme
