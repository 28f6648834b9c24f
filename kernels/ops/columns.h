#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// Columns [to_column, to_column + columns) of `to` := columns [from_column, from_column + columns) of `from`; the rest of `to` is unchanged.
/// from [M,A], to [M,B] of one dtype, without overlap in memory.
void copy_columns(Context& ctx, const Tensor& from, int64_t from_column, const Tensor& to, int64_t to_column, int64_t columns);

/// Columns [first, first + C) of `to` += x; the rest of `to` is unchanged.   x [M,C], to [M,B] of one dtype, without overlap in memory.
void add_columns(Context& ctx, const Tensor& x, const Tensor& to, int64_t first);

}  // namespace trireme
