#pragma once
// Softmax cross-entropy over a vocabulary split by columns: the three local passes between which tensor ranks reduce a max and two sums.
// logits [M,C]: columns [0, valid) are tokens vocab_begin..vocab_begin+valid; columns beyond are padding, which is ignored and gets gradient 0.
// A target below 0 is masked: it adds nothing to the loss and its gradient row is 0. Source: Shoeybi et al. 2019, arXiv:1909.08053, section 3.
#include "kernels/core/tensor.h"

namespace trireme {

struct VocabRange {
  int64_t begin = 0;  ///< first token of this rank
  int64_t valid = 0;  ///< tokens on this rank
};

/// row_max[m] = max over valid columns (-infinity if there are none).   row_max [M] in the accumulator of the logits' dtype.
void cross_entropy_max(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max);
/// sums[m] = sum over valid columns of exp(logit - row_max[m]); sums[M+m] = logit of the target - row_max[m] if it is on this rank, else 0.
/// targets [M] int32, sums [2,M] in the accumulator dtype: one all-reduce sums both over tensor ranks.
void cross_entropy_sums(Context& ctx, const Tensor& logits, const Tensor& targets, const VocabRange& range, const Tensor& row_max,
                        const Tensor& sums);
/// loss_sum[0] (f64) += sum over unmasked rows of log(sums[m]) - sums[M+m].
void cross_entropy_loss(Context& ctx, const Tensor& targets, const Tensor& sums, const Tensor& loss_sum);
/// logits := (softmax - one_hot(target)) * scale[0], in place.   scale [1] f64: 1 / valid tokens of the global batch.
void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits);

}  // namespace trireme
