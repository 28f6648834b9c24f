#pragma once
// CPU kernels of kernels/ops/columns.h. Threads share the rows.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

void copy_columns(Context& ctx, const Tensor& from, int64_t from_column, const Tensor& to, int64_t to_column, int64_t columns);
void add_columns(Context& ctx, const Tensor& x, const Tensor& to, int64_t first);

}  // namespace trireme::cpu
