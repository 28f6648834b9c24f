#include "trainer/loop/batches.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <span>
#include <utility>

#include "kernels/ops/transfer.h"
#include "parallel/comm/communicator.h"
#include "trainer/data/balance.h"

namespace trireme {

Batches::Batches(Context& ctx, const Config& config, Mesh& mesh, std::optional<Rerouting> rerouting)
    : ctx_(ctx), config_(config), mesh_(mesh), rerouting_(std::move(rerouting)) {
  place(even_split(config), 0);
}

void Batches::place(const MicroBatchSplit& split, int rotation) {
  split_ = split;
  const int ranks = mesh_.data->size(), rank = mesh_.at.island * ranks + (mesh_.data->rank() + rotation) % ranks;
  const int count = split_[static_cast<size_t>(rank)];
  missing_ = std::ranges::max(split_) - count;

  const int64_t rows = config_.training.micro_batch_size, tokens = rows * config_.training.sequence_length;
  const auto indices = [&] { return Tensor::empty(ctx_, {tokens}, DType::kI32, MemoryCategory::kData); };
  std::vector<MicrobatchOrigin> added;
  if (rerouting_) added = rerouting_->added[static_cast<size_t>(mesh_.data->rank())][static_cast<size_t>(mesh_.at.pipeline)];
  own_ = static_cast<size_t>(count);
  const size_t all = own_ + added.size();
  batch_.resize(std::min(batch_.size(), all));
  while (batch_.size() < all) {
    batch_.push_back({indices(), indices(), 0});
    if (config_.data.document_mask) batch_.back().documents = {indices(), indices()};
  }
  int64_t sample = std::reduce(split_.begin(), split_.begin() + rank) * rows;
  for (size_t i = 0; i < own_; ++i) batch_[i].first_sample = std::exchange(sample, sample + rows);
  for (size_t i = 0; i < added.size(); ++i)
    batch_[own_ + i].first_sample = (int64_t{(added[i].data + rotation) % ranks} * count + added[i].microbatch) * rows;
}

void Batches::place_gradient(int64_t part) {
  const int64_t rows = config_.training.micro_batch_size;
  int64_t sample = (part * mesh_.data->size() + mesh_.data->rank()) * std::ssize(batch_) * rows;
  for (Microbatch& microbatch : batch_) microbatch.first_sample = std::exchange(sample, sample + rows);
}

Sampler Batches::sampler(const Dataset& data) const {
  return Sampler(static_cast<uint64_t>(config_.run.seed), data.groups(), config_.training.global_batch_size, start_);
}

/// Whether this rank computes the micro-batch of batch_ with this number.
bool Batches::computes(size_t number) const {
  return !rerouting_ || number >= own_ || static_cast<int>(number) < rerouting_->from || !rerouting_->relieves(mesh_.data->rank(), mesh_.at.pipeline);
}

BatchFigures Batches::read_step(const Dataset& data, int64_t step) {
  const Sampler order = sampler(data);
  const auto sample_of = [&](int64_t index) { return order.sample(step, index); };
  if (config_.data.balance == Balance::kNone || ctx_.device == Device::kMeta) return read(data, sample_of);
  double imbalance = 0;
  const std::vector<int64_t> places = balanced(data, sample_of, imbalance);
  BatchFigures figures = read(data, [&](int64_t index) { return sample_of(places[static_cast<size_t>(index)]); });
  figures.cost_imbalance = imbalance;
  return figures;
}

BatchFigures Batches::read_samples(const Dataset& data, const std::vector<int64_t>& samples) {
  return read(data, [&](int64_t index) { return index < std::ssize(samples) ? samples[static_cast<size_t>(index)] : -1; });
}

BatchFigures Batches::read_evaluation(const Dataset& data, int64_t batch) {
  return read(data, [&](int64_t index) { return evaluation_sample(data.sequences(), config_.training.global_batch_size, batch, index); });
}

BatchFigures Batches::read(const Dataset& data, const SampleOf& sample_of) {
  const int64_t rows = config_.training.micro_batch_size;
  const int64_t sequence = config_.training.sequence_length;
  const int64_t count = rows * sequence;
  const Tensor host = host_tensor({4, count}, DType::kI32);
  int32_t *const tokens = host.data<int32_t>(), *const targets = tokens + count, *const starts = targets + count, *const ends = starts + count;
  std::vector<int64_t> lengths;  // of documents
  BatchFigures figures;
  const auto begin = std::chrono::steady_clock::now();
  for (size_t number = 0; number < batch_.size(); ++number) {
    const Microbatch& microbatch = batch_[number];
    const bool own = number < own_;
    if (ctx_.device == Device::kMeta) {
      if (own) figures.targets += count, figures.local_targets += count;
      continue;
    }
    lengths.clear();
    for (int64_t b = 0; b < rows; ++b) {
      const int64_t sample = sample_of(microbatch.first_sample + b);
      data.read(sample, tokens + b * sequence, targets + b * sequence, lengths);
      if (own) figures.padding += data.padding(sample);
    }
    const int64_t valid = std::count_if(targets, targets + count, [](int32_t target) { return target >= 0; });
    if (own) figures.targets += valid;
    if (computes(number)) figures.local_targets += valid;
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
  const bool packs = config_.data.packing != Packing::kNone;
  std::vector<int64_t> sums = {figures.targets};
  if (packs) sums.push_back(figures.padding);
  sums = all_reduce_counts(*mesh_.data, sums);
  figures.targets = sums[0];
  figures.padding = packs ? sums[1] : 0;
  return figures;
}

/// The balanced_places of a global batch, the same on every rank: each data rank reads the documents of its part, and all ranks share the costs.
/// `imbalance`: BatchFigures::cost_imbalance.
std::vector<int64_t> Batches::balanced(const Dataset& data, const SampleOf& sample_of, double& imbalance) {
  const int64_t rows = config_.training.micro_batch_size;
  std::vector<int32_t> unused(static_cast<size_t>(2 * config_.training.sequence_length));
  std::vector<int64_t> costs(static_cast<size_t>(config_.training.global_batch_size)), segments;
  const auto begin = std::chrono::steady_clock::now();
  for (const Microbatch& microbatch : std::span(batch_).first(own_)) {
    for (int64_t place = microbatch.first_sample; place < microbatch.first_sample + rows; ++place) {
      segments.clear();
      data.read(sample_of(place), unused.data(), unused.data() + config_.training.sequence_length, segments);
      costs[static_cast<size_t>(place)] = sequence_cost(segments, config_.model.hidden_size);
    }
  }
  input_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  costs = all_reduce_counts(*mesh_.data, costs);
  const int64_t ranks = mesh_.data->size();
  std::vector<int64_t> places = balanced_places(costs, ranks, static_cast<int64_t>(own_));
  imbalance = cost_imbalance(costs, places, ranks);
  return places;
}

}  // namespace trireme
