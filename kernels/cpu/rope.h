#pragma once
// CPU kernels of kernels/ops/rope.h. Threads share the rows.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

void rope_forward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& qkv);
void rope_backward(Context& ctx, const Tensor& table, int64_t heads, const Tensor& dqkv);

}  // namespace trireme::cpu
