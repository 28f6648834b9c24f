#pragma once
// GPU implementation of kernels/ops/rope.h for fp32, bf16 and fp16: rotates packed QKV in place.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& qkv);
void rope_backward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& dqkv);

}  // namespace trireme::cuda
