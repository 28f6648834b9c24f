#pragma once
#include "kernels/ops/attention.h"
#include "parallel/tensor/linear.h"
#include "trainer/model/microbatch.h"
#include "trainer/model/norm.h"

namespace trireme {

/// Causal self-attention over this rank's heads: ColumnParallel QKV, norms of queries and keys, RoPE, softmax attention, RowParallel output.
struct Attention {
  ColumnParallelLinear qkv;
  RowParallelLinear output;
  int64_t heads, kv_heads, head_size;  ///< on this rank
  int64_t window = 0;                  ///< tokens that a query sees; 0: all before it
  Tensor rope;                         ///< [>= T,H] table; undefined: learned positions
  HeadNorm query_norm, key_norm;       ///< both or none

  struct Saved {
    Tensor qkv;                            ///< [M,(N+2K)H], rotated; with norms as projected, for a pass over memory makes the rest again
    Tensor out;                            ///< [M,N*H]
    Tensor lse;                            ///< [M*N]: [count,N,length] for each run of segments
    Tensor dqkv, dy_all;                   ///< kept from backward_input for backward_weight
    HeadNorm::Saved query_norm, key_norm;  ///< the same
  };
  Tensor forward(Context& ctx, const ForwardContext& pass, const Tensor& x, Saved& saved) const;
  /// `saved` may lack `out` and `lse`: they are made again from saved.qkv.
  Tensor backward_input(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const;
  void backward_weight(Context& ctx, const Tensor& x, const Saved& saved) const;
  /// Both, with communication behind products.
  Tensor backward(Context& ctx, const ForwardContext& pass, const Tensor& x, const Tensor& dy, Saved& saved) const;

 private:
  /// saved.qkv with queries and keys normalised: a copy, or saved.qkv itself where there are no norms.
  Tensor normalised(Context& ctx, Saved& saved) const;
  /// rope_forward or rope_backward of queries and keys, in place: positions count from the beginning of a segment.
  void rotate(Context& ctx, const ForwardContext& pass, void (*turn)(Context&, const Tensor&, int64_t, const Tensor&), const Tensor& packed) const;
  void attend(Context& ctx, const ForwardContext& pass, const Tensor& packed, Saved& saved) const;
  /// Puts keys and values of the rows into the cache, the last ones where it is too small for all.
  void remember(Context& ctx, const KeyValueCache& cache, const Tensor& packed, int64_t position) const;
  void decode(Context& ctx, const ForwardContext& pass, const Tensor& packed, const Tensor& out) const;
  /// saved.dqkv and saved.dy_all.
  void backward_to_qkv(Context& ctx, const ForwardContext& pass, const Tensor& dy, Saved& saved) const;
  void backward_head_norms(Context& ctx, const Saved& saved) const;  ///< of their weights
  AttentionShape shape(const SegmentRun& run) const { return {run.count, run.length, heads, kv_heads, head_size, window}; }
  /// The part of lse that belongs to a run.
  Tensor of_run(const Tensor& lse, const SegmentRun& run) const { return lse.flat_view(run.first_row * heads, {run.count, heads, run.length}); }
};

}  // namespace trireme
