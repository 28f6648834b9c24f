#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

void fill(Context& ctx, double value, const Tensor& out);
/// to = from, converted if the dtypes differ.   Same number of elements.
void copy(Context& ctx, const Tensor& from, const Tensor& to);
/// out = a + b; out may be a or b.
void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out);
/// y = factor * x; y may be x.
void scale(Context& ctx, const Tensor& x, double factor, const Tensor& y);
/// out += x; out may be wider than x (fp32 gradient, narrower activation).
void accumulate(Context& ctx, const Tensor& x, const Tensor& out);
/// largest[0] (f64) = max(largest[0], max |x|): exact, so that the order of calls does not matter. NaN as soon as either has one.
void max_absolute(Context& ctx, const Tensor& x, const Tensor& largest);

/// Identifies a dropout mask: element i of the tensor is element first_index + i of stream `key` (random_key of seed and purpose), draw `step`.
struct DropoutMask {
  uint64_t key = 0;
  uint64_t step = 0;
  uint64_t first_index = 0;
  double probability = 0;
};
/// y = x / (1-p) if random_uniform32(key, first_index + i, step) >= p, else 0; y may be x. The same call on dy is the backward.
void dropout(Context& ctx, const Tensor& x, const DropoutMask& mask, const Tensor& y);

/// Fills rows [row_begin, ...) and columns [column_begin, ...) of a global [*, global_columns] matrix: out[r,c] =
/// standard_deviation * random_normal(key, (row_begin + r) * global_columns + column_begin + c). A one-dimensional out is one row.
void fill_normal(Context& ctx, uint64_t key, double standard_deviation, int64_t global_columns, int64_t row_begin, int64_t column_begin,
                 const Tensor& out);

}  // namespace trireme
