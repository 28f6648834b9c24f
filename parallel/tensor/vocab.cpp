#include "parallel/tensor/vocab.h"

#include <algorithm>

#include "kernels/core/operation_log.h"
#include "kernels/ops/cross_entropy.h"
#include "kernels/ops/embedding.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/optimizer.h"
#include "kernels/ops/samples.h"

namespace trireme {

int64_t stored_tokens(int64_t tokens) {
  constexpr int64_t kLarge = 1024, kMultipleOfLarge = 128, kMultipleOfSmall = 8;
  const int64_t multiple = tokens >= kLarge ? kMultipleOfLarge : kMultipleOfSmall;
  return (tokens + multiple - 1) / multiple * multiple;
}

Tensor VocabParallelEmbedding::forward(Context& ctx, const Tensor& tokens) const {
  const Box& box = weight->specs.front().box;
  const Tensor partial = Tensor::empty(ctx, {tokens.numel(), box.extent[1]}, weight->value.dtype(), MemoryCategory::kActivations);
  embedding_forward(ctx, tokens, weight->value, box.start[0], box.extent[0], partial);
  return region->exit_forward(ctx, partial).wait(ctx);
}

void VocabParallelEmbedding::backward_weight(Context& ctx, const Tensor& tokens, const Tensor& dy) const {
  backward_gathered(ctx, tokens, gather(ctx, dy).wait(ctx));
}

void VocabParallelEmbedding::backward_gathered(Context& ctx, const Tensor& tokens, const Tensor& dy_all) const {
  const Box& box = weight->specs.front().box;
  embedding_backward(ctx, tokens, dy_all, box.start[0], box.extent[0], weight->grad_to_add_to(ctx));
}

VocabParallelCrossEntropy::Saved VocabParallelCrossEntropy::forward(Context& ctx, const Tensor& logits, const Tensor& targets,
                                                                    const Tensor& loss_sum) const {
  const VocabRange range{vocabulary->box.start[0], vocabulary->box.extent[0]};
  const int64_t rows = logits.dim(0);
  Saved saved{Tensor::empty(ctx, {rows}, accumulator_of(logits.dtype()), MemoryCategory::kActivations),
              Tensor::empty(ctx, {2, rows}, accumulator_of(logits.dtype()), MemoryCategory::kActivations)};
  cross_entropy_sums(ctx, logits, range, saved.row_max, saved.sums);
  log_collective(ctx, *tensor, "all_reduce", saved.row_max.dtype(), saved.row_max.bytes());
  tensor->all_reduce(ctx, saved.row_max, ReduceOp::kMax).wait(ctx);
  cross_entropy_rescale(ctx, logits, targets, range, saved.row_max, saved.sums);
  log_collective(ctx, *tensor, "all_reduce", saved.sums.dtype(), saved.sums.bytes());
  tensor->all_reduce(ctx, saved.sums, ReduceOp::kSum).wait(ctx);
  cross_entropy_loss(ctx, targets, saved.sums, loss_sum);
  return saved;
}

void VocabParallelCrossEntropy::backward(Context& ctx, const Tensor& logits, const Tensor& targets, const Saved& saved, const Tensor& scale) const {
  const VocabRange range{vocabulary->box.start[0], vocabulary->box.extent[0]};
  cross_entropy_backward(ctx, targets, range, saved.row_max, saved.sums, scale, logits);
}

namespace {

/// Calls body(first row, number of rows) for each chunk.
template <class Body>
void for_each_chunk(int64_t rows, int64_t chunk_rows, const Body& body) {
  for (int64_t first = 0; first < rows; first += chunk_rows) body(first, std::min(chunk_rows, rows - first));
}

Tensor logits_of(Context& ctx, const Tensor& x, const Tensor& w) {
  const Tensor logits = Tensor::empty(ctx, {x.dim(0), w.dim(0)}, x.dtype(), MemoryCategory::kActivations);
  linear_forward(ctx, x, w, Tensor(), logits);
  return logits;
}

}  // namespace

void VocabParallelHead::forward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& loss_sum) const {
  const LogLayer layer(ctx, logits.name);
  const Tensor all = logits.region->enter_forward(ctx, x).wait(ctx);
  for_each_chunk(all.dim(0), chunk_rows, [&](int64_t first, int64_t rows) {
    loss.forward(ctx, logits_of(ctx, all.rows(first, rows), logits.weight->value), targets.rows(first, rows), loss_sum);
  });
}

Tensor VocabParallelHead::forward_backward(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& scale, const Tensor& loss_sum) const {
  const LogLayer layer(ctx, logits.name);
  const Tensor& w = logits.weight->value;
  const Tensor all = logits.region->enter_forward(ctx, x).wait(ctx);
  const Tensor dx = Tensor::empty(ctx, all.shape(), x.dtype(), MemoryCategory::kActivations);
  PendingRegionOp reduced;
  for_each_chunk(all.dim(0), chunk_rows, [&](int64_t first, int64_t rows) {
    const Tensor chunk = logits_of(ctx, all.rows(first, rows), w);
    const VocabParallelCrossEntropy::Saved saved = loss.forward(ctx, chunk, targets.rows(first, rows), loss_sum);
    loss.backward(ctx, chunk, targets.rows(first, rows), saved, scale);
    linear_backward_input(ctx, chunk, w, dx.rows(first, rows));
    if (first + rows == all.dim(0)) reduced = logits.region->enter_backward(ctx, dx);  // overlaps the last product dw
    if (logits.weight->trainable()) linear_backward_weight(ctx, chunk, all.rows(first, rows), logits.weight->grad, logits.weight->must_add_to_grad());
  });
  return reduced.wait(ctx);
}

Tensor VocabParallelHead::backward_input(Context& ctx, const Tensor& x, const Tensor& targets, const Tensor& scale, const Tensor& loss_sum,
                                         int64_t samples, const Tensor& tokens, SampleSaved& saved) const {
  const LogLayer layer(ctx, logits.name);
  const Tensor& w = logits.weight->value;
  const Box& box = logits.weight->specs.front().box;
  saved.x = logits.region->enter_forward(ctx, x).wait(ctx);
  saved.squares = Tensor::zeros(ctx, {samples}, DType::kF64, MemoryCategory::kWorkspace);
  const Tensor dx = Tensor::empty(ctx, saved.x.shape(), x.dtype(), MemoryCategory::kActivations);
  const bool trained = logits.weight->trainable();
  Tensor dw;  // of one sample
  if (trained) dw = Tensor::empty(ctx, w.shape(), accumulator_of(x.dtype()), MemoryCategory::kWorkspace);
  if (tokens.defined()) saved.token_rows = Tensor::empty(ctx, saved.x.shape(), dw.dtype(), MemoryCategory::kActivations);
  const int64_t sequence = saved.x.dim(0) / samples;
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int64_t begin = sample * sequence;
    for_each_chunk(sequence, chunk_rows, [&](int64_t first, int64_t rows) {
      const Tensor own_x = saved.x.rows(begin + first, rows), own_targets = targets.rows(begin + first, rows);
      const Tensor chunk = logits_of(ctx, own_x, w);
      saved.chunks.push_back(loss.forward(ctx, chunk, own_targets, loss_sum));
      loss.backward(ctx, chunk, own_targets, saved.chunks.back(), scale);
      linear_backward_input(ctx, chunk, w, dx.rows(begin + first, rows));
      if (trained) linear_backward_weight(ctx, chunk, own_x, dw, first > 0);
    });
    if (trained) sum_of_squares(ctx, std::span(&dw, 1), saved.squares.flat(sample, 1));
    if (tokens.defined())
      embedding_forward(ctx, tokens.rows(begin, sequence), dw, box.start[0], box.extent[0], saved.token_rows.rows(begin, sequence));
  }
  return logits.region->enter_backward(ctx, dx).wait(ctx);
}

void VocabParallelHead::backward_weight(Context& ctx, const Tensor& targets, const Tensor& scale, const Tensor& factors,
                                        const SampleSaved& saved) const {
  if (!logits.weight->trainable()) return;
  const LogLayer layer(ctx, logits.name);
  const int64_t samples = factors.dim(0), sequence = saved.x.dim(0) / samples;
  clear_sample_rows(ctx, saved.x, sequence, 0, factors);
  size_t next = 0;
  for (int64_t sample = 0; sample < samples; ++sample) {
    for_each_chunk(sequence, chunk_rows, [&](int64_t first, int64_t rows) {
      const Tensor own_x = saved.x.rows(sample * sequence + first, rows);
      const Tensor chunk = logits_of(ctx, own_x, logits.weight->value);
      loss.backward(ctx, chunk, targets.rows(sample * sequence + first, rows), saved.chunks[next++], scale);
      scale_sample_rows(ctx, chunk, sequence, sample * sequence + first, factors);
      linear_backward_weight(ctx, chunk, own_x, logits.weight->grad, logits.weight->must_add_to_grad());
    });
  }
}

}  // namespace trireme
