#include "trainer/plan/memory/least_memory.h"

#include <algorithm>

#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/recompute.h"
#include "trainer/plan/layouts.h"

namespace trireme {

LeastMemory::LeastMemory(const Config& config, PartProfiles& profiles)
    : microbatches_(config.training.global_batch_size / config.training.micro_batch_size), gradients_(gradients_per_step(config)) {
  const TrainingConfig& training = config.training;
  const ProfileShape shape = profile_shape(config);
  const std::vector<Recompute> policy = recompute_policy(config);
  sums_.emplace_back();
  for (const Part& part : profiles.parts()) {
    double trained = 0, frozen = 0;
    const std::vector<int64_t>& units = profiles.of(part, shape).units;
    for (size_t u = 0; u < units.size(); ++u) (part.units[u].trainable ? trained : frozen) += static_cast<double>(units[u]);
    const PartProfile& profile = profiles.of(part, shape, recompute_of(part, policy));
    // A schedule has whole backwards, or begins them with input gradients.
    const int64_t backward = std::min(profile.backward.peak, profile.input_gradient.peak);
    const PartMemory memory{trained, frozen, static_cast<double>(profile.saved), static_cast<double>(std::max<int64_t>(0, backward - profile.saved))};
    if (part.kind == PartKind::kEmbedding) embedding_ = memory;
    if (part.kind == PartKind::kHead) head_ = memory;
    if (part.kind == PartKind::kHead && config.model.tied_embeddings) shared_ = static_cast<double>(profile.units.back());
    if (part.kind != PartKind::kBlock) continue;
    blocks_.push_back(memory);
    sums_.push_back({sums_.back().trained + trained, sums_.back().frozen + frozen, sums_.back().saved + memory.saved, 0});
  }
  shares_frozen_ = !has_tied_gradients(config.model);
  const Precision precision = precision_of(training);
  const auto bytes = [](DType type) { return static_cast<double>(size_of(type)); };
  const int64_t tokens = training.micro_batch_size * training.sequence_length;
  boundary_ = static_cast<double>(tokens * config.model.hidden_size) * bytes(precision.compute) / (shape.sequence_parallel ? shape.tensor : 1);
  input_ = static_cast<double>(2 * static_cast<int64_t>(sizeof(int32_t)) * tokens);
  table_ = static_cast<double>(rope_table_elements(config.model)) * bytes(accumulator_of(precision.compute));
  master_weights_ = precision.master != precision.compute;
  parameter_ = bytes(precision.compute);
  gradient_ = bytes(precision.gradient);
  optimizer_ =
      static_cast<double>(std::min(state_count(training, true), state_count(training, false)) + (master_weights_ ? 1 : 0)) * bytes(precision.master);
}

/// What the first backward of a stage has at its peak beyond the bytes that its forward saved: it begins with the last parts.
double LeastMemory::first_backward(const StageRange& stage) const {
  const double block = stage.blocks > 0 ? blocks_[static_cast<size_t>(stage.first_block + stage.blocks - 1)].backward : 0;
  return stage.last() ? std::max(head_.backward, block - head_.saved) : stage.blocks > 0 ? block : embedding_.backward;
}

/// microbatches_of() without a configuration: of the data rank that has most of them.
int64_t LeastMemory::microbatches(const Layout& layout) const {
  const int64_t parts = layout.data * gradients_;
  return (microbatches_ + parts - 1) / parts;
}

std::vector<LeastMemory::Rank> LeastMemory::ranks(const Layout& layout, const std::vector<int64_t>& split) const {
  const int64_t count = microbatches(layout);
  const std::vector<int> rank_of = stage_ranks_of(layout);
  const std::vector<int> forwards = forwards_before_backward(layout.schedule, static_cast<int>(layout.pipeline),
                                                             static_cast<int>(layout.stages_per_rank()), static_cast<int>(count));
  std::vector<Rank> ranks(static_cast<size_t>(layout.pipeline));
  std::vector<double> backward(ranks.size());  // of the rank's last stage, with which its backwards begin
  int64_t first_block = 0;
  for (size_t s = 0; s < split.size(); ++s) {
    const StageRange stage{static_cast<int>(s), static_cast<int>(split.size()), first_block, split[s]};
    const PartMemory &from = sums_[static_cast<size_t>(first_block)], &to = sums_[static_cast<size_t>(first_block += split[s])];
    Rank& rank = ranks[static_cast<size_t>(rank_of[s])];
    rank.trained += to.trained - from.trained + (stage.first() ? embedding_.trained : 0) + (stage.last() ? head_.trained : 0);
    rank.frozen += to.frozen - from.frozen + (stage.first() ? embedding_.frozen : 0) + (stage.last() ? head_.frozen : 0);
    const double saved = to.saved - from.saved + (stage.first() ? embedding_.saved : 0) + (stage.last() ? head_.saved : 0);
    rank.bytes += static_cast<double>(forwards[s]) * saved + table_;
    backward[static_cast<size_t>(rank_of[s])] = first_backward(stage);
  }
  Rank& end = ranks[static_cast<size_t>(rank_of.back())];
  if (rank_of.front() == rank_of.back()) (shares_frozen_ ? end.frozen : end.trained) -= shared_;
  for (size_t r = 0; r < ranks.size(); ++r) {
    // An output is on its way to the next stage.
    const bool sends = layout.pipeline > 1 && (layout.stages_per_rank() > 1 || static_cast<int>(r) != rank_of.back());
    ranks[r].bytes += backward[r] + input_ * static_cast<double>(count) + (sends ? boundary_ : 0);
  }
  return ranks;
}

double LeastMemory::peak(const Layout& layout, const std::vector<Rank>& ranks) const {
  const ZeroPolicy policy = zero_policy(static_cast<int>(layout.zero), static_cast<int>(layout.data), static_cast<int>(layout.replicate),
                                        layout.gradient_accumulation, layout.reshard == Reshard::kAfterUse);
  const double share = 1.0 / policy.shard;
  const double parameters = policy.parameters_resident ? parameter_ : master_weights_ ? 0 : share * parameter_;
  const double trained = parameters + (policy.gradients_resident ? 1 : share) * gradient_ + share * optimizer_;
  const double frozen = (policy.parameters_resident ? 1 : share) * parameter_;
  double most = 0;
  for (const Rank& rank : ranks) most = std::max(most, rank.bytes + trained * rank.trained + frozen * rank.frozen);
  return most;
}

}  // namespace trireme
