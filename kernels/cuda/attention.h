#pragma once
// GPU implementation of kernels/ops/attention.h. bf16 and fp16 with head size 32, 64, 96 or 128 and 16-byte aligned tensors use flash attention on
// tensor cores; everything else up to head size 256 uses a tiled kernel on fp32 units. No T x T matrix is stored. The backward is
// deterministic: it uses no atomics.
// Errors: InternalError for a larger head size.
#include "kernels/core/gpu.h"
#include "kernels/core/tensor.h"
#include "kernels/ops/attention.h"

namespace trireme::cuda {

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse);
/// Processes kv heads in rounds, so that the statistics of a round (8 bytes per token and query head) fit in `scratch_bytes`.
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv, int64_t scratch_bytes = Gpu::kScratchBytes);
/// Runs on fp32 units, one block per row and query head.
void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out);

}  // namespace trireme::cuda
