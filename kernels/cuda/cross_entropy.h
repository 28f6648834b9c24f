#pragma once
// GPU implementation of kernels/ops/cross_entropy.h for fp32, bf16 and fp16: one block per row in the passes over all logits.
#include "kernels/core/tensor.h"
#include "kernels/ops/cross_entropy.h"

namespace trireme::cuda {

void cross_entropy_sums(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max, const Tensor& sums);
void cross_entropy_rescale(Context& ctx, const Tensor& logits, const Tensor& targets, const VocabRange& range, const Tensor& row_max,
                           const Tensor& sums);
/// Sums in double in one block, in a fixed order.
void cross_entropy_loss(Context& ctx, const Tensor& targets, const Tensor& sums, const Tensor& loss_sum);
void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits);

}  // namespace trireme::cuda
