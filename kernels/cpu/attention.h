#pragma once
// kernels/ops/attention.h in fp32, bf16 and fp16, on blocks of 64 queries and 64 keys; no matrix of scores is larger than that. A thread's workspace,
// from ctx.arena, holds the packed keys and values of one kv head and, in the backward, the fp32 sums of their gradients: 2 T H and 5 T H elements,
// and some blocks. bf16 is multiplied as bf16 where the CPU can, with probabilities and their gradients rounded to it; elsewhere, and in fp16,
// products are fp32. No result depends on the number of threads. A NaN or infinity among values or output gradients may also reach queries and keys
// that the mask keeps from it in a pair of blocks that the mask cuts, as 0 times it.
#include "kernels/core/tensor.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/ops/attention.h"

namespace trireme::cpu {

/// Of a level, or of the highest below it that has kernels of its own for T.
template <class T>
const TypedAttention<T>& attention_kernels(Isa isa);

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse);
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv);

/// Threads share the query heads.
void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out);

/// With given kernels.
template <class T>
void attention_forward(Context& ctx, const TypedAttention<T>& kernels, const Tensor& qkv, const AttentionShape& shape, const Tensor& out,
                       const Tensor& lse);
template <class T>
void attention_backward(Context& ctx, const TypedAttention<T>& kernels, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                        const AttentionShape& shape, const Tensor& dqkv);

}  // namespace trireme::cpu
