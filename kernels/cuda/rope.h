#pragma once
// GPU implementation of kernels/ops/rope.h for fp32, bf16 and fp16: rotates packed QKV in place.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

/// `starts`: of Documents, or null.
void rope_forward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& qkv);
void rope_backward(Context& ctx, const Tensor& table, int64_t heads, int64_t head_size, const int32_t* starts, const Tensor& dqkv);

}  // namespace trireme::cuda
