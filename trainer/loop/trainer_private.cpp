// Differentially private steps (security.privacy): the methods of Trainer that draw samples, clip their gradients and add noise.
// Source: Abadi et al. 2016, arXiv:1607.00133, algorithm 1.
#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/core/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/samples.h"
#include "trainer/loop/trainer.h"

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

void Trainer::set_privacy(const crypto::PrivateRandom& random, double noise) {
  TRIREME_CHECK(is_private(config_.security) && noise >= 0, "noise ", noise, " for a run that is not private");
  privacy_.random = random;
  privacy_.noise = noise;
}

/// Each sequence of the data is drawn with probability global_batch_size / sequences, by itself (Poisson sampling), and the step is split for their
/// number. Returns the samples by their places in the step; -1 is padding.
std::vector<int64_t> Trainer::draw_samples(const Dataset& data, int64_t step) {
  TRIREME_CHECK(privacy_.random.has_value(), "a private step without set_privacy");
  TRIREME_CHECK(data.groups().size() == 1, "private training on a blend of ", data.groups().size(), " groups");
  const int64_t sequences = data.groups().front().sequences;
  const double rate = static_cast<double>(config_.training.global_batch_size) / static_cast<double>(sequences);
  const std::vector<int64_t> samples = privacy_.random->poisson_sample(step, sequences, rate);
  const int64_t rows = config_.training.micro_batch_size, ranks = mesh_.data->size();
  MicroBatchSplit split;
  std::vector<int64_t> places;
  for (const std::vector<int64_t>& mine : adds_noise_on_each_rank(config_) ? drawn_ranks(samples) : even_parts(samples, rows, ranks)) {
    // Every data rank has a micro-batch, because it waits for the others' reductions.
    split.push_back(static_cast<int>(std::max<int64_t>(1, (std::ssize(mine) + rows - 1) / rows)));
    places.insert(places.end(), mine.begin(), mine.end());
    places.resize(static_cast<size_t>(std::reduce(split.begin(), split.end(), int64_t{0}) * rows), -1);
  }
  split_samples(split);
  return places;
}

/// The samples of each data rank, where each adds its own noise. The data rank of a sample is drawn: one that followed from the number of other samples would
/// carry their presence into the sums of several data ranks, and one that followed from the index alone would change for all samples after one that
/// is removed.
std::vector<std::vector<int64_t>> Trainer::drawn_ranks(const std::vector<int64_t>& samples) const {
  const std::vector<int> owners = privacy_.random->ranks_of(step_, samples, mesh_.data->size());
  std::vector<std::vector<int64_t>> of_ranks(static_cast<size_t>(mesh_.data->size()));
  for (size_t i = 0; i < samples.size(); ++i) of_ranks[static_cast<size_t>(owners[i])].push_back(samples[i]);
  return of_ranks;
}

/// Factor of the clipped gradient of a sample in what its data rank contributes. A robust rule takes the place of a mean over the data ranks, and not of
/// a sum.
double Trainer::sample_weight() const {
  const double contributions = is_robust(config_.security) ? mesh_.data->size() : 1;
  return contributions / static_cast<double>(config_.training.global_batch_size);
}

/// Like set_micro_batches, for a split of any number of micro-batches.
void Trainer::split_samples(const MicroBatchSplit& split) {
  if (split == split_) return;
  const int longest = std::ranges::max(split);
  if (longest != std::ranges::max(split_)) {
    const auto [lists, added] = privacy_.lists.try_emplace(longest);
    if (added) {
      LoweredSchedule schedule = lowered_schedule(config_, longest);
      const auto pipeline = static_cast<size_t>(mesh_.at.pipeline);
      lists->second = {std::move(schedule.training[pipeline]), std::move(schedule.evaluation[pipeline])};
    }
    longest_training_ = lists->second.training;
    longest_evaluation_ = lists->second.evaluation;
  }
  split_ = split;
  rotate_data(0);
}

/// Starts the sum of the squared norm of each sample's gradient of the whole model. The first stage is the last to add to it.
void Trainer::start_clip(int microbatch) {
  const TrainingConfig& training = config_.training;
  SampleSquares squares(ctx_, stages_.front()->region(), training.micro_batch_size, training.sequence_length, precision_.compute);
  for (const auto& stage : stages_) stage->add_sample_squares(ctx_, microbatch, squares);
  Privacy::Clip& clip = privacy_.clips[microbatch];
  TransformerStage* const first = stages_.front()->range().first() ? stages_.front().get() : nullptr;
  if (config_.model.tied_embeddings && (first != nullptr || last_ != nullptr)) {
    clip.token_rows = last_ != nullptr ? last_->take_token_rows(microbatch)
                                       : Tensor::empty(ctx_, {training.micro_batch_size * training.sequence_length, config_.model.hidden_size},
                                                       accumulator_of(precision_.compute), MemoryCategory::kActivations);
    // No deadlock: the last stage's I of a micro-batch comes before the first's, and it waits for nobody here.
    if (first == nullptr || last_ == nullptr) clip.send = mesh_.embedding->broadcast(ctx_, clip.token_rows, mesh_.embedding->size() - 1);
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

/// Gives the stages the factor of each sample.
void Trainer::wait_clip(int microbatch) {
  Privacy::Clip clip = std::move(privacy_.clips.extract(microbatch).mapped());
  clip.send.wait(ctx_);
  clip.sum.wait(ctx_);
  const Tensor factors = Tensor::empty(ctx_, clip.squares.shape(), DType::kF64, MemoryCategory::kWorkspace);
  const double limit = *config_.security.privacy.clip * sample_weight();
  clip_factors(ctx_, clip.squares, limit, size_of(precision_.compute) == 2, factors);
  for (const auto& stage : stages_) stage->set_sample_factors(microbatch, factors);
}

/// NOISE: adds the noise of the step to this rank's shards of the summed gradient. It is a function of key, step, name and global index, so that all copies of a
/// weight get the same value, in every layout.
void Trainer::add_noise() {
  for (const OwnedBox& owned : owned_boxes()) add_noise_to(owned.gradient, owned.box, *owned.spec, owned.spec->name);
}

/// Adds the noise of this data rank to a unit's gradient before anything else is done with it: what is compressed, compared and kept then follows from
/// values that are private already. Of ranks whose gradients add up to that of a parameter, one adds it.
void Trainer::add_noise_of_rank(const TransformerStage& stage, int unit, const Tensor& gradient) {
  const Unit& of = *stage.params().units()[static_cast<size_t>(unit)];
  for (const Unit::Segment& segment : of.segments(0, of.numel())) {
    const ParamSpec& spec = *segment.spec;
    const bool second_tied_copy = spec.name == "embedding.weight" && !stage.range().first();
    if (second_tied_copy || (spec.partial_over != Partial::kNone && !spec.is_primary_copy)) continue;
    const std::string stream = concat("data rank ", mesh_.data->rank(), ": ", spec.name);
    for (const BoxRange& range : boxes_of(spec, segment.param_begin, segment.param_begin + segment.count))
      add_noise_to(gradient.flat(segment.flat_begin + range.offset - segment.param_begin, range.box.numel()), range.box, spec, stream);
  }
}

/// `gradient`: of the elements of a rectangle of a parameter.
void Trainer::add_noise_to(const Tensor& gradient, const Box& box, const ParamSpec& spec, const std::string& stream) {
  if (privacy_.noise == 0 || ctx_.device == Device::kMeta) return;
  const double deviation = privacy_.noise * *config_.security.privacy.clip * sample_weight();
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
        privacy_.random->normal(stream, step_, row * columns + column, values);
        T* const to = gradient.data<T>() + offset;
        for (size_t c = 0; c < values.size(); ++c) to[c] = static_cast<T>(static_cast<double>(to[c]) + deviation * values[c]);
      }
    });
  });
}

}  // namespace trireme
