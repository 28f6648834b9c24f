#pragma once
#include "kernels/ops/attention.h"
#include "trainer/model/microbatch.h"
#include "trainer/model/weight_gradients.h"

namespace trireme {

/// Causal self-attention over this rank's heads: QKV, optional QK norm, RoPE, softmax attention, output.
struct Attention {
  Linear qkv;                          ///< splits outputs
  Linear output;                       ///< splits inputs
  int64_t heads, kv_heads, head_size;  ///< on this rank
  int64_t window = 0;                  ///< tokens a query attends to, itself included; 0: all preceding tokens
  double score_scale = 0;              ///< factor of the scores; 0: 1/sqrt(H)
  Tensor rope;                         ///< [>= T,R] table, R: elements of a head that are rotated; undefined: learned positions
  HeadNorm query_norm, key_norm;       ///< QK norm: both have a weight or neither has

  struct Saved {
    Tensor qkv;                            ///< [M,(N+2K)H] after RoPE; with QK norm before norm and RoPE, which the backward recomputes
    Tensor out;                            ///< [M,N*H]
    Tensor lse;                            ///< log-sum-exp of the scores, [B,N,T]
    Tensor dqkv, dy_all;                   ///< kept from backward_input for the weight gradients
    HeadNorm::Saved query_norm, key_norm;  ///< likewise
  };
  Tensor forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const;
  /// Recomputes what forward saves, with the same operations; skips the `output` product.
  void recompute_forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const;
  /// Recomputes `out` and `lse` from saved.qkv if `saved` lacks them.
  Tensor backward_input(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const;
  WeightGradients weight_gradients(const Tensor& x, const Saved& saved) const;
  /// Fused backward_input and W, bit-identical to one after the other; overlaps communication with matrix products.
  Tensor backward(Context& ctx, const ForwardContext& pass, const Tensor& x, const Tensor& dy, Saved& saved) const;

 private:
  bool has_norms() const { return query_norm.norm.weight != nullptr; }
  /// Returns saved.qkv with normalised queries and keys: a copy, or saved.qkv itself without QK norm.
  Tensor normalised(Context& ctx, Saved& saved) const;
  /// Applies `turn` (rope_forward or rope_backward) to queries and keys in place.
  void rotate(Context& ctx, const ForwardContext& pass, void (*turn)(Context&, const Tensor&, int64_t, int64_t, const Tensor&, const Documents&),
              const Tensor& packed) const;
  void attend(Context& ctx, const ForwardContext& pass, const Tensor& packed, Saved& saved) const;
  /// Writes keys and values of the rows to the cache; if it is too small for all rows, those of the last ones.
  void remember(Context& ctx, const KeyValueCache& cache, const Tensor& packed, int64_t position) const;
  void decode(Context& ctx, const ForwardContext& pass, const Tensor& packed, const Tensor& out) const;
  /// Computes saved.dqkv, before the QK norms, and saved.dy_all.
  void backward_to_qkv(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const;
  AttentionShape shape(int64_t sequences, int64_t length) const { return {sequences, length, heads, kv_heads, head_size, window, score_scale}; }
  AttentionShape shape(const ForwardContext& pass) const { return shape(pass.rows / pass.sequence, pass.sequence); }
};

}  // namespace trireme
