#pragma once
// GPU implementation of kernels/ops/columns.h for fp32, bf16 and fp16.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void copy_columns(Context& ctx, const Tensor& from, int64_t from_column, const Tensor& to, int64_t to_column, int64_t columns);
void add_columns(Context& ctx, const Tensor& x, const Tensor& to, int64_t first);

}  // namespace trireme::cuda
