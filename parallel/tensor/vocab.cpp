#include "parallel/tensor/vocab.h"

#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/embedding.h"

namespace trireme {

Tensor VocabParallelEmbedding::forward(Context& ctx, const Tensor& tokens) const {
  const Box& box = weight->specs.front().box;
  const Tensor partial = Tensor::empty(ctx, {tokens.numel(), box.extent[1]}, weight->value.dtype(), MemoryCategory::kActivations);
  embedding_forward(ctx, tokens, weight->value, box.start[0], box.extent[0], partial);
  return region->exit_forward(ctx, partial);
}

void VocabParallelEmbedding::backward_weight(Context& ctx, const Tensor& tokens, const Tensor& dy) const {
  const Box& box = weight->specs.front().box;
  embedding_backward(ctx, tokens, region->exit_backward(ctx, dy), box.start[0], box.extent[0], weight->grad);
}

VocabParallelCrossEntropy::Saved VocabParallelCrossEntropy::forward(Context& ctx, const Tensor& logits, const Tensor& targets,
                                                                    const Tensor& loss_sum) const {
  const VocabRange range{vocabulary->box.start[0], vocabulary->box.extent[0]};
  const int64_t rows = logits.dim(0);
  Saved saved{Tensor::empty(ctx, {rows}, logits.dtype(), MemoryCategory::kActivations),
              Tensor::empty(ctx, {2, rows}, logits.dtype(), MemoryCategory::kActivations)};
  cross_entropy_max(ctx, logits, range, saved.row_max);
  tensor->all_reduce(ctx, saved.row_max, ReduceOp::kMax).wait(ctx);
  cross_entropy_sums(ctx, logits, targets, range, saved.row_max, saved.sums);
  tensor->all_reduce(ctx, saved.sums, ReduceOp::kSum).wait(ctx);
  cross_entropy_loss(ctx, targets, saved.sums, loss_sum);
  return saved;
}

void VocabParallelCrossEntropy::backward(Context& ctx, const Tensor& logits, const Tensor& targets, const Saved& saved, const Tensor& scale) const {
  const VocabRange range{vocabulary->box.start[0], vocabulary->box.extent[0]};
  cross_entropy_backward(ctx, targets, range, saved.row_max, saved.sums, scale, logits);
}

}  // namespace trireme
