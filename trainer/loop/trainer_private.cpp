// Differentially private steps (security.privacy): the methods of Trainer that draw samples, clip their gradients and add noise.
// Source: Abadi et al. 2016, arXiv:1607.00133, algorithm 1.
#include <algorithm>

#include "kernels/core/dtype.h"
#include "kernels/cpu/parallel.h"
#include "kernels/ops/samples.h"
#include "trainer/loop/trainer.h"

namespace trireme {

void Trainer::set_privacy(const crypto::PrivateRandom& random, double noise) {
  TRIREME_CHECK(is_private(config_.security) && noise >= 0, "noise ", noise, " for a run that is not private");
  privacy_.random = random;
  privacy_.noise = noise;
}

/// The samples of a step, ascending: each sequence of the data with probability global_batch_size / sequences, by itself (Poisson sampling). Splits the
/// step for their number; places beyond it are padding.
std::vector<int64_t> Trainer::draw_samples(const Dataset& data, int64_t step) {
  TRIREME_CHECK(privacy_.random.has_value(), "a private step without set_privacy");
  TRIREME_CHECK(data.groups().size() == 1, "private training on a blend of ", data.groups().size(), " groups");
  const int64_t sequences = data.groups().front().sequences;
  const double rate = static_cast<double>(config_.training.global_batch_size) / static_cast<double>(sequences);
  std::vector<int64_t> samples = privacy_.random->poisson_sample(step, sequences, rate);
  privacy_.step = step;
  const int64_t rows = config_.training.micro_batch_size, ranks = mesh_.data->size();
  const int64_t count =
      std::max(ranks, (std::ssize(samples) + rows - 1) / rows);  // every data rank has a micro-batch, because it waits for the others' reductions
  MicroBatchSplit split;
  for (int64_t rank = 0; rank < ranks; ++rank) split.push_back(static_cast<int>(count / ranks + (rank < count % ranks ? 1 : 0)));
  split_samples(split);
  return samples;
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
  const double limit = *config_.security.privacy.clip / static_cast<double>(config_.training.global_batch_size);
  clip_factors(ctx_, clip.squares, limit, size_of(precision_.compute) == 2, factors);
  for (const auto& stage : stages_) stage->set_sample_factors(microbatch, factors);
}

/// Adds the noise of the step to this rank's shards of the summed gradient. It is a function of key, step, name and global index, so that all copies of a
/// weight get the same value, in every layout.
void Trainer::add_noise() {
  if (!is_private(config_.security) || privacy_.noise == 0 || ctx_.device == Device::kMeta) return;
  const double deviation = privacy_.noise * *config_.security.privacy.clip / static_cast<double>(config_.training.global_batch_size);
  constexpr int64_t kBlock = 4096;
  for (const OwnedBox& owned : owned_boxes()) {
    const Box& box = owned.box;
    const int64_t columns = owned.spec->shape[1];
    // Whole rows are one range of the parameter, in blocks; parts of rows are a range each.
    const int64_t run = box.extent[1] == columns ? kBlock : box.extent[1], count = box.numel();
    dispatch_float(owned.gradient.dtype(), [&]<class T>(T) {
      cpu::parallel_for(ctx_, (count + run - 1) / run, cpu::grain_of(run), [&](int64_t begin, int64_t end) {
        std::vector<double> values;
        for (int64_t i = begin; i < end; ++i) {
          const int64_t offset = i * run, row = box.start[0] + offset / box.extent[1], column = box.start[1] + offset % box.extent[1];
          values.resize(static_cast<size_t>(std::min(run, count - offset)));
          privacy_.random->normal(owned.spec->name, privacy_.step, row * columns + column, values);
          T* const gradient = owned.gradient.data<T>() + offset;
          for (size_t c = 0; c < values.size(); ++c) gradient[c] = static_cast<T>(static_cast<double>(gradient[c]) + deviation * values[c]);
        }
      });
    });
  }
}

}  // namespace trireme
