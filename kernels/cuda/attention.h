#pragma once
// kernels/ops/attention.h on the GPU: flash attention on tensor cores for bf16 and fp16, head sizes 32, 64, 96, 128 and tensors that begin at a multiple of
// 16 bytes; anything else up to head size 256 by a plain tiled kernel on fp32 units. No T x T matrix in memory; the backward is deterministic: no atomics.
// Errors: InternalError for a larger head size.
#include "kernels/core/gpu.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/attention.h"

namespace trireme::cuda {

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse);
/// In rounds over as many kv heads as `scratch_bytes` hold the statistics of (8 bytes for each token and query head).
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv, int64_t scratch_bytes = Gpu::kScratchBytes);
/// On fp32 units, a block for each row and query head.
void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out);

}  // namespace trireme::cuda
