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
  const SharedWeights shared(*this);
  if (privacy_.random) split_samples(even_split(config_));
  for (int64_t b = 0; b < all; ++b) {
    if (!go_on()) return {.complete = false};
    note("evaluation of batch ", b + 1);
    result.tokens += read_batch(data, [&](int64_t index) { return evaluation_sample(data.sequences(), global_batch, b, index); });
    begin(RunMode::kEvaluate, batch_, config_.training.sequence_length, 0);
    executor_->run(ctx_, evaluation_list_);
    if (last_ != nullptr && mesh_.at.tensor == 0) loss += read_scalar(ctx_, last_->loss_sum());
  }
  result.tokens = all_reduce_count(*mesh_.islands, result.tokens);
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
  TRIREME_CHECK(mesh_.shape.world() == mesh_.shape.tensor && batch_.size() == 1 && !config_.parallel.sequence_parallel,
                "logits of a text need a layout of tensor ranks only, one micro-batch and no sequence parallelism");
  queue_text(tokens, {.tokens = {}, .targets = {}, .position = position}, mode, evaluation_list_);
  return gather_logits(last_->logits(0));
}

int64_t Trainer::text_room() const {
  const int64_t length = config_.training.sequence_length;
  return config_.parallel.sequence_parallel ? length / config_.parallel.tensor * config_.parallel.tensor : length;
}

std::vector<double> Trainer::continuation_logits(std::span<const int32_t> text) {
  const auto length = static_cast<int64_t>(text.size()), unit = config_.parallel.sequence_parallel ? config_.parallel.tensor : int64_t{1};
  TRIREME_CHECK(!text_list_.empty() && length > 0 && length <= text_room(), length, " tokens of ", text_room());
  // Attention is causal: what follows the text does not change it.
  std::vector<int32_t> padded(text.begin(), text.end());
  padded.resize(static_cast<size_t>((length + unit - 1) / unit * unit));
  const SharedWeights shared(*this);
  queue_text(padded, {.tokens = {}, .targets = {}, .last_row = length - 1}, RunMode::kDecode, text_list_);
  if (last_ == nullptr) return {};
  const Tensor logits = last_->logits(0);
  const int64_t rows_of_rank = std::ssize(padded) / logits.dim(0);
  return gather_logits(logits.rows((length - 1) / rows_of_rank, 1));
}

/// Queues the forward of one text of one micro-batch. `place`: without tokens.
void Trainer::queue_text(std::span<const int32_t> tokens, const Microbatch& place, RunMode mode, const ActionList& list) {
  const auto length = static_cast<int64_t>(tokens.size());
  Microbatch microbatch = place;
  microbatch.tokens = Tensor::empty(ctx_, {length}, DType::kI32, MemoryCategory::kData);
  const Tensor host = host_tensor({length}, DType::kI32);
  std::copy(tokens.begin(), tokens.end(), host.data<int32_t>());
  from_host(ctx_, host, microbatch.tokens);
  begin(mode, {microbatch}, length, 0);
  executor_->run(ctx_, list);
}

/// Rows of logits [rows,V] from those of each tensor rank, [rows, >= V/t].
std::vector<double> Trainer::gather_logits(const Tensor& mine) {
  const int64_t rows = mine.dim(0), columns = mine.dim(1), parts = mesh_.shape.tensor, vocabulary = *config_.model.vocab_size;
  const int64_t tokens_of_part = (vocabulary + parts - 1) / parts;
  const Tensor all = Tensor::empty(ctx_, {parts, rows, columns}, mine.dtype(), MemoryCategory::kWorkspace);
  mesh_.tensor->all_gather(ctx_, mine, all).wait(ctx_);
  const Tensor wide = Tensor::empty(ctx_, all.shape(), DType::kF64, MemoryCategory::kWorkspace);
  copy(ctx_, all, wide);
  if (ctx_.device == Device::kMeta) return {};
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
