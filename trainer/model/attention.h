#pragma once
#include "kernels/ops/attention.h"
#include "parallel/tensor/linear.h"
#include "trainer/model/microbatch.h"

namespace trireme {

/// Causal self-attention over this rank's heads: ColumnParallel QKV, RoPE, softmax attention, RowParallel output.
struct Attention {
  ColumnParallelLinear qkv;
  RowParallelLinear output;
  int64_t heads, kv_heads, head_size;  ///< on this rank
  Tensor rope;                         ///< [>= T,H] table; undefined: learned positions

  struct Saved {
    Tensor qkv;           ///< [M,(N+2K)H], rotated
    Tensor out;           ///< [M,N*H]
    Tensor lse;           ///< [B,N,T]
    Tensor dqkv, dy_all;  ///< kept from backward_input for backward_weight
  };
  Tensor forward(Context& ctx, const Pass& pass, const Tensor& x, Saved& saved) const;
  Tensor backward_input(Context& ctx, const Pass& pass, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;

 private:
  AttentionShape shape(const Pass& pass) const { return {pass.rows / pass.sequence, pass.sequence, heads, kv_heads, head_size}; }
};

}  // namespace trireme
