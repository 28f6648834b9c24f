#pragma once
// The row passes of kernels/ops/cross_entropy.h in fp32, bf16 and fp16: a block a row.
#include "kernels/core/tensor.h"
#include "kernels/ops/cross_entropy.h"

namespace trireme::cuda {

void cross_entropy_max(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max);
void cross_entropy_sums(Context& ctx, const Tensor& logits, const Tensor& targets, const VocabRange& range, const Tensor& row_max,
                        const Tensor& sums);
/// In one block, in a fixed order, in double.
void cross_entropy_loss(Context& ctx, const Tensor& targets, const Tensor& sums, const Tensor& loss_sum);
void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits);

}  // namespace trireme::cuda
