#pragma once
// The layers that are split over the vocabulary: ceil(V/t) tokens per tensor rank, in stored_tokens(ceil(V/t)) rows of the weight. The rows beyond a
// rank's box are padding: they hold zero, get a zero gradient, are in no checkpoint and never enter a softmax or a norm.
// Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
#include "parallel/param.h"
#include "parallel/tensor/linear.h"
#include "parallel/tensor/region.h"

namespace trireme {

/// Rows that embedding and head allocate for `tokens` tokens of a tensor rank: a multiple of 128 from 1024 tokens on, else a multiple of 8. Matrix
/// products with logits then have sizes for which vendor libraries have tensor-core kernels, for every vocabulary.
/// Source: NVIDIA, Matrix Multiplication Background User's Guide (sizes in multiples of 16 bytes, 128 bytes on A100).
int64_t stored_tokens(int64_t tokens);

/// y[m] = W[token m]: each rank looks up its own tokens and `exit` sums the results.
/// Shapes on this rank: tokens [M] int32, w [stored_tokens(ceil(V/t)),D], y [M/t or M, D].   Communication: `exit` forward and backward.
struct VocabParallelEmbedding {
  Param* weight;
  const Region* region;

  Tensor forward(Context& ctx, const Tensor& tokens) const;
  void backward_weight(Context& ctx, const Tensor& tokens, const Tensor& dy) const;
  PendingRegionOp gather(Context& ctx, const Tensor& dy) const { return region->exit_backward(ctx, dy); }  ///< dy of all rows
  void backward_gathered(Context& ctx, const Tensor& tokens, const Tensor& dy_all) const;
};

/// Softmax cross-entropy of logits [M, stored_tokens(ceil(V/t))], split by vocabulary columns.
/// Communication, forward: all-reduce max of M and sum of 2M elements over `tensor`; backward: none.
struct VocabParallelCrossEntropy {
  const ParamSpec* vocabulary;  ///< the head's weight; its box gives this rank's tokens
  Communicator* tensor;

  struct Saved {
    Tensor row_max, sums;
  };
  /// loss_sum [1] f64 += sum of the negative log-likelihoods of the unmasked targets; the same on every tensor rank.
  Saved forward(Context& ctx, const Tensor& logits, const Tensor& targets, const Tensor& loss_sum) const;
  /// logits := d(loss_sum)/d(logits) * scale[0], in place.
  void backward(Context& ctx, const Tensor& logits, const Tensor& targets, const Saved& saved, const Tensor& scale) const;
};

/// The output head with its loss, `chunk_rows` rows of logits at a time: forward and both gradients of a chunk are computed before the next chunk, so
/// that at most `chunk_rows` rows of logits exist.
/// Shapes on this rank: x [M/t or M, D], targets [M] int32, weight [stored_tokens(ceil(V/t)),D].
/// Communication: `enter` of x once; its conjugate once, overlapped with the last chunk's product dw; the reductions of VocabParallelCrossEntropy for
/// each chunk.
/// Source of the fusion: Hsu et al. 2024, arXiv:2410.10989, section 3.2.
struct VocabParallelHead {
  Linear logits;  ///< splits outputs
  VocabParallelCrossEntropy loss;
  int64_t chunk_rows;

  /// loss_sum [1] f64 += the loss.
  void forward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& loss_sum) const;
  /// Like forward, and also computes the gradient of loss * scale[0]: returns dx and adds the weight gradient to Param::grad.
  Tensor forward_backward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& scale, const Tensor& loss_sum) const;

  /// What backward_input keeps for backward_weight, where each sample's gradient is clipped in between.
  struct SampleSaved {
    Tensor x;                                              ///< [M,D], gathered
    std::vector<VocabParallelCrossEntropy::Saved> chunks;  ///< of at most chunk_rows rows of one sample
    Tensor squares;                                        ///< [B] f64: squared norm of each sample's gradient of this rank's part of the weight
    /// [M,D] in the accumulator dtype, only of a tied head: for each row the row of its token in its sample's gradient of the weight, zero where another
    /// rank has the token. The inner product with the gradient of the embedding needs no more of it.
    Tensor token_rows;
  };
  /// forward_backward in two steps, with a factor for each of `samples` samples in between: backward_input returns dx of loss * scale[0] and computes the
  /// squares from one sample's gradient of the weight at a time, which it does not keep; backward_weight computes the logits again and adds the gradients,
  /// each times its sample's factor. A frozen weight has no squares and no gradient. `tokens` [M]: of a tied head whose weight is trained, else
  /// undefined. factors [B] f64.
  Tensor backward_input(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& scale, const Tensor& loss_sum, int64_t samples,
                        const Tensor& tokens, SampleSaved& saved) const;
  void backward_weight(Context& ctx, const Tensor& targets, const Tensor& scale, const Tensor& factors, const SampleSaved& saved) const;
};

}  // namespace trireme
