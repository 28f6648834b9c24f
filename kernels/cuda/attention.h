#pragma once
// GPU implementation of kernels/ops/attention.h. bf16 and fp16 with head size 32, 64, 96 or 128 and 16-byte aligned tensors use flash attention on
// tensor cores; everything else up to head size 256 uses a tiled kernel on fp32 units. No T x T matrix is stored. The backward is deterministic:
// blocks that add to the same sums do so in a fixed order.
// Documents change neither the launches nor their shapes: a block reads the bounds of its tokens and skips the tiles outside of their documents.
// Errors: InternalError for a larger head size.
#include "kernels/core/tensor.h"
#include "kernels/ops/attention.h"

namespace trireme::cuda {

/// Head sizes of the tensor-core kernels.
constexpr bool flash_supports(int64_t head_size) { return head_size == 32 || head_size == 64 || head_size == 96 || head_size == 128; }
/// The head sizes among them that kernels/cuda/attention_hopper.h computes on GPUs of compute capability 9.0.
constexpr bool hopper_supports(int64_t head_size) { return head_size == 64 || head_size == 128; }

// Workspace of the backward: 16 bytes, and for each kv head of each sequence that is processed at a time kv_head_bytes.
constexpr int64_t kTicketBytes = 16;
constexpr int kStatisticsTile = 128;  ///< tokens are rounded up to a multiple of it
constexpr int kCountedQueries = 32;   ///< tokens per counter
constexpr int64_t statistics_stride(int64_t sequence) { return (sequence + kStatisticsTile - 1) / kStatisticsTile * kStatisticsTile; }
/// Per token and query head: 8 bytes of statistics, and on tensor cores 4 H bytes of fp32 sums and 1/8 byte of counters.
constexpr int64_t kv_head_bytes(const AttentionShape& shape, bool flash) {
  const int64_t rows = shape.heads / shape.kv_heads * statistics_stride(shape.sequence);
  return rows * 8 + (flash ? rows * shape.head_size * 4 + rows / kCountedQueries * 4 : 0);
}
/// Bytes for all kv heads or, if those take more than 132 MiB, for as many as fit, but at least one. That is enough to fill a GPU of 132
/// multiprocessors, on each of which a block has 128 keys: the eight kv heads of Llama 8B at T 8192 take 130 MiB and have 512 blocks.
constexpr int64_t attention_workspace_bytes(const AttentionShape& shape, DType dtype) {
  const int64_t each = kv_head_bytes(shape, size_of(dtype) == 2 && flash_supports(shape.head_size)), all = shape.batch * shape.kv_heads;
  const int64_t fitting = (int64_t{132} << 20) / (each > 0 ? each : 1);
  return kTicketBytes + each * (fitting < 1 ? 1 : fitting < all ? fitting : all);
}

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Documents& documents, const Tensor& out,
                       const Tensor& lse);
/// Processes as many kv heads at a time as fit in `workspace`, 16-byte aligned.   Errors: InternalError if that is none.
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Documents& documents, const Tensor& dqkv, const Tensor& workspace);
/// Runs on fp32 units, one block per row and query head.
void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out);

}  // namespace trireme::cuda
