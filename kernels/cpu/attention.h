#pragma once
// CPU kernels of kernels/ops/attention.h in fp32, bf16 and fp16, on blocks of 64 queries and 64 keys; no score matrix is larger than one block. The
// workspace of a thread, from ctx.arena, contains the packed keys and values of one kv head and, in the backward, the fp32 sums of their gradients:
// 2TH and 5TH elements, plus a few blocks. bf16 is multiplied as bf16 if the CPU supports it, with probabilities and their gradients rounded to bf16;
// otherwise, and in fp16, matrix products are fp32. Results do not depend on the number of threads. In a pair of blocks that the mask cuts, a NaN or
// infinity in values or output gradients may also reach masked queries and keys, as 0 times NaN or infinity.
#include "kernels/core/tensor.h"
#include "kernels/cpu/isa/attention.h"
#include "kernels/ops/attention.h"

namespace trireme::cpu {

/// The kernels of a level for T, or of the highest level below it that has such kernels.
template <class T>
const TypedAttention<T>& attention_kernels(Isa isa);

void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Documents& documents, const Tensor& out,
                       const Tensor& lse);
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Documents& documents, const Tensor& dqkv);

/// Threads share the query heads.
void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out);

/// The same with the given kernels.
template <class T>
void attention_forward(Context& ctx, const TypedAttention<T>& kernels, const Tensor& qkv, const AttentionShape& shape, const Documents& documents,
                       const Tensor& out, const Tensor& lse);
template <class T>
void attention_backward(Context& ctx, const TypedAttention<T>& kernels, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse,
                        const AttentionShape& shape, const Documents& documents, const Tensor& dqkv);

}  // namespace trireme::cpu
