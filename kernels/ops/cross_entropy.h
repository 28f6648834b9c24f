#pragma once
// Softmax cross-entropy over a vocabulary split by columns: the local passes between which tensor ranks reduce a max and two sums.
// logits [M,C]: columns [0, valid) are tokens vocab_begin..vocab_begin+valid; columns beyond are padding, which is ignored and gets gradient 0.
// A target below 0 is masked: it adds nothing to the loss and its gradient row is 0. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
// The forward reads the logits once: each rank sums exponentials relative to its own maximum, and rescales the sum when the maximum of all ranks is
// known. Source: Milakov & Gimelshein 2018, arXiv:1805.02867 (online softmax).
#include "kernels/core/tensor.h"

namespace trireme {

struct VocabRange {
  int64_t begin = 0;  ///< first token of this rank
  int64_t valid = 0;  ///< tokens on this rank
};

/// row_max[m] = sums[M+m] = max over valid columns (-infinity if there are none); sums[m] = sum over them of exp(logit - row_max[m]), 0 if row_max[m]
/// is -infinity.   row_max [M], sums [2,M] in the accumulator of the logits' dtype.
void cross_entropy_sums(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max, const Tensor& sums);
/// After cross_entropy_sums, when row_max is the maximum over tensor ranks: sums[m] *= exp(sums[M+m] - row_max[m]), then sums[M+m] = logit of the
/// target - row_max[m] if it is on this rank, else 0. One all-reduce then sums both over tensor ranks.   targets [M] int32.
void cross_entropy_rescale(Context& ctx, const Tensor& logits, const Tensor& targets, const VocabRange& range, const Tensor& row_max,
                           const Tensor& sums);
/// loss_sum[0] (f64) += sum over unmasked rows of log(sums[m]) - sums[M+m].
void cross_entropy_loss(Context& ctx, const Tensor& targets, const Tensor& sums, const Tensor& loss_sum);
/// logits := (softmax - one_hot(target)) * scale[0], in place.   scale [1] f64: 1 / valid tokens of the global batch.
void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits);

}  // namespace trireme
