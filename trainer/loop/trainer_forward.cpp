// Evaluation and logits: the methods of Trainer that need no backward.
#include <algorithm>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "parallel/comm/communicator.h"
#include "trainer/loop/trainer.h"

namespace trireme {

Trainer::Evaluation Trainer::evaluate(const Dataset& data, int64_t batches, const std::function<bool()>& go_on) {
  const int64_t global_batch = config_.training.global_batch_size;
  const int64_t all = evaluation_batches(data.sequences(), global_batch, batches);
  double loss = 0;
  Evaluation result;
  for (int64_t b = 0; b < all; ++b) {
    if (!go_on()) return {.complete = false};
    note("evaluation of batch ", b + 1);
    result.tokens += read_batch(data, [&](int64_t index) { return evaluation_sample(data.sequences(), global_batch, b, index); });
    begin(RunMode::kEvaluate, batch_, config_.training.sequence_length, 0);
    executor_->run(ctx_, evaluation_list_);
    if (last_ != nullptr && mesh_.at.tensor == 0) loss += read_scalar(ctx_, last_->loss_sum());
  }
  result.nats = all_reduce_scalar(mesh_.world, loss, ReduceOp::kSum);
  result.loss = result.nats / static_cast<double>(std::max<int64_t>(result.tokens, 1));
  return result;
}

void Trainer::Evaluation::add(const Evaluation& other) {
  nats += other.nats;
  tokens += other.tokens;
  complete = complete && other.complete;
  loss = nats / static_cast<double>(std::max<int64_t>(tokens, 1));
}

std::vector<double> Trainer::run_text(std::span<const int32_t> tokens, int64_t position, RunMode mode) {
  TRIREME_CHECK(mesh_.shape.world() == mesh_.shape.tensor && microbatches_ == 1 && !config_.parallel.sequence_parallel,
                "logits of a text need a layout of tensor ranks only, one micro-batch and no sequence parallelism");
  const auto length = static_cast<int64_t>(tokens.size());
  const Microbatch microbatch{.tokens = Tensor::empty(ctx_, {length}, DType::kI32, MemoryCategory::kData), .targets = {}, .position = position};
  const Tensor host = host_tensor({length}, DType::kI32);
  std::copy(tokens.begin(), tokens.end(), host.data<int32_t>());
  from_host(ctx_, host, microbatch.tokens);
  begin(mode, {microbatch}, length, 0);
  executor_->run(ctx_, evaluation_list_);

  const Tensor mine = last_->logits(0);
  const int64_t rows = mine.dim(0), columns = mine.dim(1), parts = mesh_.shape.tensor, vocabulary = *config_.model.vocab_size;
  const int64_t tokens_of_part = (vocabulary + parts - 1) / parts;
  const Tensor all = Tensor::empty(ctx_, {parts, rows, columns}, mine.dtype(), MemoryCategory::kWorkspace);
  mesh_.tensor->all_gather(ctx_, mine, all).wait(ctx_);
  const Tensor wide = Tensor::empty(ctx_, all.shape(), DType::kF64, MemoryCategory::kWorkspace);
  copy(ctx_, all, wide);
  const Tensor gathered = to_host(ctx_, wide);
  std::vector<double> logits;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t part = 0; part < parts; ++part) {  // each rank has a part of the vocabulary; padding is left out
      const double* const from = gathered.data<double>() + (part * rows + row) * columns;
      logits.insert(logits.end(), from, from + std::clamp<int64_t>(vocabulary - part * tokens_of_part, 0, tokens_of_part));
    }
  }
  return logits;
}

}  // namespace trireme
