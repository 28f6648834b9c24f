#pragma once
// CPU kernels for the passes over all logits of kernels/ops/cross_entropy.h. Threads share the rows.
#include "kernels/core/tensor.h"
#include "kernels/ops/cross_entropy.h"

namespace trireme::cpu {

void cross_entropy_sums(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max, const Tensor& sums);
void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits);

}  // namespace trireme::cpu
