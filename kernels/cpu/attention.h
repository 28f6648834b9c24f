#pragma once
// kernels/ops/attention.h in fp32, and in bf16 by way of fp32 copies. A task is one (sequence, kv head); tasks go to threads, and the query heads that share a kv head are summed inside
// one task, in order. Scores exist for one block of query rows at a time: [32, T] a thread, never T x T.
#include "kernels/core/tensor.h"
#include "kernels/ops/attention.h"

namespace trireme::cpu {

/// Workspace of a thread: (H + 32) T + T H + 32 H floats.
void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse);
/// Probabilities are computed again from lse. Workspace of a thread: (2 H + 64) T + 3 T H + 96 H floats.
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv);

}  // namespace trireme::cpu
