#include "trainer/loop/private_gradients.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/samples.h"
#include "parallel/comm/communicator.h"

namespace trireme {
namespace {

/// The samples of each data rank: whole micro-batches of `rows`, whose numbers differ by one at most.
std::vector<std::vector<int64_t>> even_parts(const std::vector<int64_t>& samples, int64_t rows, int64_t ranks) {
  const int64_t count = (std::ssize(samples) + rows - 1) / rows;
  std::vector<std::vector<int64_t>> parts;
  auto next = samples.begin();
  for (int64_t rank = 0; rank < ranks; ++rank) {
    const int64_t most = (count / ranks + (rank < count % ranks ? 1 : 0)) * rows;
    const auto end = next + std::min<int64_t>(most, samples.end() - next);
    parts.emplace_back(std::exchange(next, end), end);
  }
  return parts;
}

}  // namespace

void PrivateGradients::set_source(const crypto::PrivateRandom& random, double noise) {
  TRIREME_CHECK(noise >= 0, "a noise multiplier of ", noise);
  random_ = random;
  noise_ = noise;
}

/// Each sequence of the data is drawn with probability global_batch_size / sequences, by itself (Poisson sampling), and the step is split for their
/// number.
PrivateGradients::Drawn PrivateGradients::draw(const Dataset& data, int64_t step) const {
  TRIREME_CHECK(random_.has_value(), "a private step without set_source");
  TRIREME_CHECK(data.groups().size() == 1, "private training on a blend of ", data.groups().size(), " groups");
  const int64_t sequences = data.groups().front().sequences;
  const double rate = static_cast<double>(config_.training.global_batch_size) / static_cast<double>(sequences);
  const std::vector<int64_t> samples = random_->poisson_sample(step, sequences, rate);
  const int64_t rows = config_.training.micro_batch_size, ranks = mesh_.data->size();
  Drawn drawn;
  for (const std::vector<int64_t>& own : adds_noise_on_each_rank(config_) ? drawn_ranks(samples, step) : even_parts(samples, rows, ranks)) {
    // Every data rank has a micro-batch, because it waits for the others' reductions.
    drawn.split.push_back(static_cast<int>(std::max<int64_t>(1, (std::ssize(own) + rows - 1) / rows)));
    drawn.samples.insert(drawn.samples.end(), own.begin(), own.end());
    drawn.samples.resize(static_cast<size_t>(std::reduce(drawn.split.begin(), drawn.split.end(), int64_t{0}) * rows), -1);
  }
  return drawn;
}

/// The samples of each data rank, where each adds its own noise. The data rank of a sample is drawn: one that followed from the number of other samples would
/// carry their presence into the sums of several data ranks, and one that followed from the index alone would change for all samples after one that
/// is removed.
std::vector<std::vector<int64_t>> PrivateGradients::drawn_ranks(const std::vector<int64_t>& samples, int64_t step) const {
  const std::vector<int> owners = random_->ranks_of(step, samples, mesh_.data->size());
  std::vector<std::vector<int64_t>> of_ranks(static_cast<size_t>(mesh_.data->size()));
  for (size_t i = 0; i < samples.size(); ++i) of_ranks[static_cast<size_t>(owners[i])].push_back(samples[i]);
  return of_ranks;
}

double PrivateGradients::sample_weight() const {
  return (is_robust(config_.security) ? mesh_.data->size() : 1) / static_cast<double>(config_.training.global_batch_size);
}

void PrivateGradients::start_clip(int microbatch) {
  const TrainingConfig& training = config_.training;
  SampleSquares squares(ctx_, stages_.front()->region(), training.micro_batch_size, training.sequence_length, precision_.compute);
  for (const auto& stage : stages_) stage->add_sample_squares(ctx_, microbatch, squares);
  Clip& clip = clips_[microbatch];
  TransformerStage* const first = stages_.front()->range().first() ? stages_.front().get() : nullptr;
  TransformerStage* const last = stages_.back()->range().last() ? stages_.back().get() : nullptr;
  if (has_tied_gradients(config_.model) && (first != nullptr || last != nullptr)) {
    clip.token_rows = last != nullptr ? last->take_token_rows(microbatch)
                                      : Tensor::empty(ctx_, {training.micro_batch_size * training.sequence_length, config_.model.hidden_size},
                                                      accumulator_of(precision_.compute), MemoryCategory::kActivations);
    // No deadlock: the last stage's I of a micro-batch comes before the first's, and it waits for nobody here.
    if (first == nullptr || last == nullptr) clip.send = mesh_.embedding->broadcast(ctx_, clip.token_rows, mesh_.embedding->size() - 1);
    if (first != nullptr) {
      clip.send.wait(ctx_);
      first->add_tied_squares(ctx_, microbatch, clip.token_rows, squares);
      clip.token_rows.reset();
    }
  }
  squares.finish(ctx_);
  clip.squares = squares.values();
  mesh_.tensor->all_reduce(ctx_, clip.squares, ReduceOp::kSum).wait(ctx_);
  clip.sum = mesh_.pipeline->all_reduce(ctx_, clip.squares, ReduceOp::kSum);
}

void PrivateGradients::wait_clip(int microbatch) {
  Clip clip = std::move(clips_.extract(microbatch).mapped());
  clip.send.wait(ctx_);
  clip.sum.wait(ctx_);
  const Tensor factors = Tensor::empty(ctx_, clip.squares.shape(), DType::kF64, MemoryCategory::kWorkspace);
  const double limit = *config_.security.privacy.clip * sample_weight();
  clip_factors(ctx_, clip.squares, limit, size_of(precision_.compute) == 2, factors);
  for (const auto& stage : stages_) stage->set_sample_factors(microbatch, factors);
}

void PrivateGradients::add_noise(const std::vector<OwnedBox>& owned, int64_t step) const {
  for (const OwnedBox& one : owned)
    if (one.spec->trainable) add_noise_to(one.gradient, one.box, *one.spec, one.spec->name, step);
}

void PrivateGradients::add_noise_of_rank(const TransformerStage& stage, int unit, const Tensor& gradient, int64_t step) const {
  const Unit& of = *stage.params().units()[static_cast<size_t>(unit)];
  for (const Unit::Segment& segment : of.segments(0, of.numel())) {
    const ParamSpec& spec = *segment.spec;
    const bool second_tied_copy = spec.name == kEmbeddingWeight && !stage.range().first();
    if (second_tied_copy || (spec.partial_over != Partial::kNone && !spec.is_primary_copy)) continue;
    const std::string stream = concat("data rank ", mesh_.data->rank(), ": ", spec.name);
    for (const BoxRange& range : boxes_of(spec, segment.param_begin, segment.param_begin + segment.count))
      add_noise_to(gradient.flat(segment.flat_begin + range.offset - segment.param_begin, range.box.numel()), range.box, spec, stream, step);
  }
}

/// `gradient`: of the elements of a rectangle of a parameter.
void PrivateGradients::add_noise_to(const Tensor& gradient, const Box& box, const ParamSpec& spec, const std::string& stream, int64_t step) const {
  if (noise_ == 0 || ctx_.device == Device::kMeta) return;
  const double deviation = noise_ * *config_.security.privacy.clip * sample_weight();
  constexpr int64_t kBlock = 4096;
  const int64_t columns = spec.shape[1];
  // Whole rows are one range of the parameter, in blocks; parts of rows are a range each.
  const int64_t run = box.extent[1] == columns ? kBlock : box.extent[1], count = box.numel();
  dispatch_float(gradient.dtype(), [&]<class T>(T) {
    cpu::parallel_for(ctx_, (count + run - 1) / run, cpu::grain_of(run), [&](int64_t begin, int64_t end) {
      std::vector<double> values;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t offset = i * run, row = box.start[0] + offset / box.extent[1], column = box.start[1] + offset % box.extent[1];
        values.resize(static_cast<size_t>(std::min(run, count - offset)));
        random_->normal(stream, step, row * columns + column, values);
        T* const to = gradient.data<T>() + offset;
        for (size_t c = 0; c < values.size(); ++c) to[c] = static_cast<T>(static_cast<double>(to[c]) + deviation * values[c]);
      }
    });
  });
}

}  // namespace trireme
