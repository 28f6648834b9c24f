#pragma once
// The rotations of kernels/ops/rope.h in fp32, bf16 and fp16, on packed QKV in place.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& qkv);
void rope_backward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& dqkv);

}  // namespace trireme::cuda
