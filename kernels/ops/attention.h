#pragma once
#include <cmath>

#include "kernels/core/tensor.h"
#include "kernels/ops/attention_band.h"
#include "kernels/ops/documents.h"

namespace trireme {

/// Heads on this rank. A row of packed qkv is [N*H queries | K*H keys | K*H values]; query head n reads kv head n / (N/K).
struct AttentionShape {
  int64_t batch = 0;       ///< B sequences
  int64_t sequence = 0;    ///< T tokens each; M = B*T rows
  int64_t heads = 0;       ///< N
  int64_t kv_heads = 0;    ///< K, divides N
  int64_t head_size = 0;   ///< H
  int64_t window = 0;      ///< a query attends to its own token and the window-1 before it; 0: to all before it
  double score_scale = 0;  ///< scores are multiplied by it; 0: by 1/sqrt(H)
  double scale() const { return score_scale == 0 ? 1 / std::sqrt(static_cast<double>(head_size)) : score_scale; }
  int64_t columns() const { return (heads + 2 * kv_heads) * head_size; }
  AttentionBand<int64_t> band() const { return {window}; }
};

/// Causal softmax attention within each document; the work grows with the squares of the documents' lengths, or with T * window.
/// qkv [M,(N+2K)H], out [M,N*H], lse [B,N,T] (accumulator dtype) = log-sum-exp of each row of scaled scores, natural logarithm, saved for the backward.
/// Source: Dao 2023, arXiv:2307.08691 (the lse formulation).
void attention_forward(Context& ctx, const Tensor& qkv, const AttentionShape& shape, const Tensor& out, const Tensor& lse,
                       const Documents& documents = {});
/// Overwrites dqkv.   dout, out [M,N*H], dqkv [M,(N+2K)H].
void attention_backward(Context& ctx, const Tensor& dout, const Tensor& qkv, const Tensor& out, const Tensor& lse, const AttentionShape& shape,
                        const Tensor& dqkv, const Documents& documents = {});

/// Causal attention of new tokens over a KV cache. The rows of qkv [R,(N+2K)H], of which only the queries are read, are tokens position, position +
/// 1, ... Row r attends to the tokens [0, position + r], or with a window to the last `window` of them. keys, values [P,K*H] are a ring buffer of all
/// tokens that a row attends to, including the new ones: token p is in row p % P. Requires P >= position + R, or with a window P >= window + R - 1.
/// out [R,N*H]. The shape has one sequence of R tokens.
void attention_decode(Context& ctx, const Tensor& qkv, const Tensor& keys, const Tensor& values, int64_t position, const AttentionShape& shape,
                      const Tensor& out);

}  // namespace trireme
