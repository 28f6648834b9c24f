#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// Heads on this rank. A row of packed qkv is [N*H queries | K*H keys | K*H values]; query head n reads kv head n / (N/K).
struct AttentionShape {
  int64_t batch = 0;      ///< B sequences
  int64_t sequence = 0;   ///< T tokens each; M = B*T rows
  int64_t heads = 0;      ///< N
  int64_t kv_heads = 0;   ///< K, divides N
  int64_t head_size = 0;  ///< H; scores are scaled by 1/sqrt(H)
  int64_t columns() const { return (heads + 2 * kv_heads) * head_size; }
};

/// Causal softmax attention.   qkv [M,(N+2K)H], out [M,N*H], lse [B,N,T] (accumulator dtype) = log-sum-exp of each row of scaled scores, natural
/// logarithm: all the backward needs.
/// Source: Dao 2023, arXiv:2307.08691 (the lse formulation).
void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse);
/// dqkv assigns.   dout, out [M,N*H], dqkv [M,(N+2K)H].
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv);

/// The same for new tokens of a text whose earlier ones are known by their keys and values alone: the rows of qkv [R,(N+2K)H], of which the queries are
/// read, are its tokens position, position + 1, ..., and row r attends to the tokens [0, position + r].
/// keys, values [P,K*H], P >= position + R, hold those of all its tokens, these too; out [R,N*H]. The shape has one sequence, of R.
void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out);

}  // namespace trireme
