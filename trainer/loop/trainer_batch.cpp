// The micro-batches of a step: which rank has which, and what is read into them.
#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/ops/elementwise.h"
#include "kernels/ops/transfer.h"
#include "trainer/data/balance.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/exposed.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/collectively.h"

namespace trireme {

int64_t Trainer::read_batch(const Dataset& data, const std::function<int64_t(int64_t)>& sample_of) {
  const int64_t rows = config_.training.micro_batch_size;
  const int64_t sequence = config_.training.sequence_length;
  const int64_t count = rows * sequence;
  const Tensor host = host_tensor({4, count}, DType::kI32);
  int32_t *const tokens = host.data<int32_t>(), *const targets = tokens + count, *const starts = targets + count, *const ends = starts + count;
  std::vector<int64_t> lengths;  // of documents
  int64_t valid = 0;
  int64_t padding = 0;
  const auto begin = std::chrono::steady_clock::now();
  local_targets_ = 0;
  for (size_t number = 0; number < batch_.size(); ++number) {
    const Microbatch& microbatch = batch_[number];
    const bool own = number < own_microbatches_;
    if (ctx_.device == Device::kMeta) {
      if (own) valid += count, local_targets_ += count;
      continue;
    }
    lengths.clear();
    for (int64_t b = 0; b < rows; ++b) {
      const int64_t sample = sample_of(microbatch.first_sample + b);
      data.read(sample, tokens + b * sequence, targets + b * sequence, lengths);
      if (own) padding += data.padding(sample);
    }
    const int64_t targets_here = std::count_if(targets, targets + count, [](int32_t target) { return target >= 0; });
    if (own) valid += targets_here;
    if (computes(number)) local_targets_ += targets_here;
    from_host(ctx_, host.flat(0, count), microbatch.tokens);
    from_host(ctx_, host.flat(count, count), microbatch.targets);
    write_bounds(lengths, count, sequence, starts, ends);
    const Documents& documents = microbatch.documents;
    TRIREME_CHECK(documents.defined() || std::ssize(lengths) == rows, "the data have several documents in a sequence, but data.document_mask is off");
    if (!documents.defined()) continue;
    from_host(ctx_, host.flat(2 * count, count), documents.starts);
    from_host(ctx_, host.flat(3 * count, count), documents.ends);
  }
  input_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (config_.data.packing != Packing::kNone) {
    const std::vector<int64_t> sums = all_reduce_counts(*mesh_.data, {valid, padding});
    padding_ = sums[1];
    return sums[0];
  }
  return all_reduce_count(*mesh_.data, valid);
}

/// The balanced_places of a global batch, the same on every rank: each data rank reads the documents of its part, and all ranks share the costs.
std::vector<int64_t> Trainer::balanced(const Dataset& data, const std::function<int64_t(int64_t)>& sample_of) {
  const int64_t rows = config_.training.micro_batch_size;
  std::vector<int32_t> unused(static_cast<size_t>(2 * config_.training.sequence_length));
  std::vector<int64_t> costs(static_cast<size_t>(config_.training.global_batch_size)), segments;
  const auto begin = std::chrono::steady_clock::now();
  for (const Microbatch& microbatch : std::span(batch_).first(own_microbatches_)) {
    for (int64_t place = microbatch.first_sample; place < microbatch.first_sample + rows; ++place) {
      segments.clear();
      data.read(sample_of(place), unused.data(), unused.data() + config_.training.sequence_length, segments);
      costs[static_cast<size_t>(place)] = sequence_cost(segments, config_.model.hidden_size);
    }
  }
  input_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  costs = all_reduce_counts(*mesh_.data, costs);
  const int64_t ranks = mesh_.data->size();
  std::vector<int64_t> places = balanced_places(costs, ranks, static_cast<int64_t>(own_microbatches_));
  cost_imbalance_ = cost_imbalance(costs, places, ranks);
  return places;
}

Sampler Trainer::sampler(const Dataset& data) const {
  return Sampler(static_cast<uint64_t>(config_.run.seed), data.groups(), config_.training.global_batch_size, data_start_);
}

void Trainer::set_micro_batches(const MicroBatchSplit& split) {
  TRIREME_CHECK(split.size() == split_.size() && std::reduce(split.begin(), split.end()) == std::reduce(split_.begin(), split_.end()) &&
                    std::ranges::min(split) >= 1,
                "a split of ", std::reduce(split.begin(), split.end()), " micro-batches over ", split.size(), " data ranks");
  if (std::ranges::max(split) != std::ranges::max(split_)) use(lowered_schedule(config_, std::ranges::max(split)));
  split_ = split;
  rotate_data(0);
}

void Trainer::rotate_data(int by) {
  const int ranks = mesh_.data->size(), rank = mesh_.at.island * ranks + (mesh_.data->rank() + by) % ranks;
  const int count = split_[static_cast<size_t>(rank)], skipped = std::ranges::max(split_) - count;
  training_list_ = without_first(longest_training_, skipped);
  evaluation_list_ = without_first(longest_evaluation_, skipped);

  const int64_t rows = config_.training.micro_batch_size, tokens = rows * config_.training.sequence_length;
  const auto indices = [&] { return Tensor::empty(ctx_, {tokens}, DType::kI32, MemoryCategory::kData); };
  std::vector<MicrobatchOrigin> added;
  if (rerouting_) added = rerouting_->added[static_cast<size_t>(mesh_.data->rank())][static_cast<size_t>(mesh_.at.pipeline)];
  own_microbatches_ = static_cast<size_t>(count);
  const size_t all = own_microbatches_ + added.size();
  batch_.resize(std::min(batch_.size(), all));
  while (batch_.size() < all) {
    batch_.push_back({indices(), indices(), 0});
    if (config_.data.document_mask) batch_.back().documents = {indices(), indices()};
  }
  int64_t sample = std::reduce(split_.begin(), split_.begin() + rank) * rows;
  for (size_t i = 0; i < own_microbatches_; ++i) batch_[i].first_sample = std::exchange(sample, sample + rows);
  for (size_t i = 0; i < added.size(); ++i)
    batch_[own_microbatches_ + i].first_sample = (int64_t{(added[i].data + by) % ranks} * count + added[i].microbatch) * rows;
}

/// Whether this rank computes the micro-batch of batch_ with this number.
bool Trainer::computes(size_t number) const {
  return !rerouting_ || number >= own_microbatches_ || static_cast<int>(number) < rerouting_->from ||
         !rerouting_->relieves(mesh_.data->rank(), mesh_.at.pipeline);
}

/// Reads the batch of a step, of whose valid targets `targets_` is the number, and writes the factor of its gradient. Returns the factor of its loss.
double Trainer::write_inputs(const Dataset& data, int64_t step) {
  const Sampler order = sampler(data);
  step_ = step;
  note("reading the batch of step ", step + 1);
  targets_ = [&] {
    const TracedRegion reading(trace_, Cause::kDataWait);
    if (is_private(config_.security) && ctx_.device != Device::kMeta) {
      const std::vector<int64_t> drawn = draw_samples(data, step);
      return read_batch(data, [&](int64_t index) { return index < std::ssize(drawn) ? drawn[static_cast<size_t>(index)] : -1; });
    }
    const auto sample_of = [&](int64_t index) { return order.sample(step, index); };
    if (config_.data.balance == Balance::kNone || ctx_.device == Device::kMeta) return read_batch(data, sample_of);
    const std::vector<int64_t> places = balanced(data, sample_of);
    return read_batch(data, [&](int64_t index) { return sample_of(places[static_cast<size_t>(index)]); });
  }();
  const double factor = 1.0 / static_cast<double>(std::max<int64_t>(targets_, 1));
  double of_gradient = factor;
  // A robust rule compares means over the tokens of each data rank; they do not depend on what others say about theirs.
  if (is_robust(config_.security)) of_gradient = 1.0 / static_cast<double>(std::max<int64_t>(local_targets_, 1));
  // The weight of a sample may not depend on others either, if its clipped gradient is to be private.
  if (is_private(config_.security)) of_gradient = sample_weight() / static_cast<double>(config_.training.sequence_length);
  for (const auto& stage : stages_) write_scalar(ctx_, of_gradient, stage->loss_scale());
  return factor;
}

}  // namespace trireme
