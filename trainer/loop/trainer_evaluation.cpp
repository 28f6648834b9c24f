// Evaluation and logits: the methods of Trainer that need no backward.
#include <algorithm>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "parallel/comm/communicator.h"
#include "trainer/loop/trainer.h"

namespace trireme {
namespace {

Tensor to_device(Context& ctx, std::span<const int32_t> tokens) {
  const Tensor host = host_tensor({std::ssize(tokens)}, DType::kI32);
  std::ranges::copy(tokens, host.data<int32_t>());
  const Tensor device = Tensor::empty(ctx, host.shape(), DType::kI32, MemoryCategory::kData);
  from_host(ctx, host, device);
  return device;
}

}  // namespace

Trainer::Evaluation Trainer::evaluate(const Dataset& data, int64_t batches, const std::function<bool()>& go_on) {
  const int64_t all = evaluation_batches(data.sequences(), config_.training.global_batch_size, batches);
  double loss = 0;
  Evaluation result;
  const SharedWeights shared(*updates_);
  if (privacy_ && batches_.split() != even_split(config_)) place(even_split(config_), 0);
  for (int64_t b = 0; b < all; ++b) {
    if (!go_on()) return {.complete = false};
    note("evaluation of batch ", b + 1);
    result.tokens += batches_.read_evaluation(data, b).targets;
    program_.evaluate(batches_.microbatches());
    if (counts_loss()) loss += read_scalar(ctx_, last_->loss_sum());
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
  TRIREME_CHECK(mesh_.shape.world() == mesh_.shape.tensor && batches_.microbatches().size() == 1 && !config_.parallel.sequence_parallel,
                "logits of a text need a layout of tensor ranks only, one micro-batch and no sequence parallelism");
  program_.run_text({.tokens = to_device(ctx_, tokens), .targets = {}, .position = position}, mode);
  return gather_logits(last_->logits(0));
}

int64_t Trainer::text_room() const {
  const int64_t length = config_.training.sequence_length;
  return config_.parallel.sequence_parallel ? length / config_.parallel.tensor * config_.parallel.tensor : length;
}

std::vector<double> Trainer::continuation_logits(std::span<const int32_t> text) {
  const auto length = static_cast<int64_t>(text.size()), unit = config_.parallel.sequence_parallel ? config_.parallel.tensor : int64_t{1};
  TRIREME_CHECK(program_.has_samples() && length > 0 && length <= text_room(), length, " tokens of ", text_room());
  // Attention is causal: what follows the text does not change it.
  std::vector<int32_t> padded(text.begin(), text.end());
  padded.resize(static_cast<size_t>((length + unit - 1) / unit * unit));
  const SharedWeights shared(*updates_);
  program_.run_sample({.tokens = to_device(ctx_, padded), .targets = {}, .last_row = length - 1}, RunMode::kDecode);
  if (last_ == nullptr) return {};
  const Tensor logits = last_->logits(0);
  const int64_t rows_of_rank = std::ssize(padded) / logits.dim(0);
  return gather_logits(logits.rows((length - 1) / rows_of_rank, 1));
}

/// Rows of logits [rows,V] from those of each tensor rank, [rows, >= V/t].
std::vector<double> Trainer::gather_logits(const Tensor& own) {
  const int64_t rows = own.dim(0), columns = own.dim(1), parts = mesh_.shape.tensor, vocabulary = *config_.model.vocab_size;
  const int64_t tokens_of_part = (vocabulary + parts - 1) / parts;
  const Tensor all = Tensor::empty(ctx_, {parts, rows, columns}, own.dtype(), MemoryCategory::kWorkspace);
  mesh_.tensor->all_gather(ctx_, own, all).wait(ctx_);
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
