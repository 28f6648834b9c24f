#pragma once
// CPU kernels of kernels/ops/rope.h. Threads share the rows.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

/// `starts`: of Documents, or null.
void rope_forward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& qkv);
void rope_backward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& dqkv);

}  // namespace trireme::cpu
