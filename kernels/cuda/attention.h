#pragma once
// kernels/ops/attention.h on the GPU: flash attention on tensor cores for bf16 and head sizes 32, 64, 96, 128; any other head size, and fp32, by a plain
// tiled kernel. No T x T matrix in memory; the backward is deterministic: no atomics.
#include "kernels/core/tensor.h"
#include "kernels/ops/attention.h"

namespace trireme::cuda {

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse);
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv);

}  // namespace trireme::cuda
