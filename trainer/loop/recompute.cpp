#include "trainer/loop/recompute.h"

#include <algorithm>
#include <map>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/rerouting.h"
#include "trainer/loop/memory.h"

namespace trireme {
namespace {

/// FLOPs that a block recomputes.
struct Cost {
  double selective, full;
};

Cost cost_of_a_block(const Config& config) {
  PartProfiles profiles(config.model);
  const Part& block = *std::ranges::find(profiles.parts(), PartKind::kBlock, &Part::kind);
  const auto flops = [&](Recompute recompute) { return flops_of(profiles.of(block, profile_shape(config), recompute).input_gradient.operations); };
  const double once = flops(Recompute::kNone);
  return {flops(Recompute::kSelective) - once, flops(Recompute::kFull) - once};
}

/// Blocks of each pipeline rank, ascending.
std::vector<std::vector<size_t>> blocks_of_ranks(const Config& config, const std::vector<int>& stage_rank) {
  std::vector<std::vector<size_t>> blocks(static_cast<size_t>(config.parallel.pipeline));
  for (const StageRange& range : stage_ranges(*config.parallel.layers_per_stage)) {
    std::vector<size_t>& of_rank = blocks[static_cast<size_t>(stage_rank[static_cast<size_t>(range.stage)])];
    for (int64_t b = 0; b < range.blocks; ++b) of_rank.push_back(static_cast<size_t>(range.first_block + b));
  }
  return blocks;
}

/// How many of a rank's blocks recompute: the first `full` in full, the next `selective` selectively.
struct Choice {
  int64_t full = 0, selective = 0;
  bool operator<(const Choice& other) const { return std::pair(full, selective) < std::pair(other.full, other.selective); }
};

/// The smallest value in [0, most] that satisfies `fits`, which is monotonic and true for `most`.
template <class Fits>
int64_t smallest(int64_t most, const Fits& fits) {
  for (int64_t least = 0; least < most;) {
    const int64_t middle = least + (most - least) / 2;
    if (fits(middle)) {
      most = middle;
    } else {
      least = middle + 1;
    }
  }
  return most;
}

class Budget {
 public:
  explicit Budget(const Config& config)
      : config_(config),
        shape_(mesh_shape(config.parallel)),
        schedule_(lowered_schedule(config)),
        blocks_(blocks_of_ranks(config, schedule_.stage_rank)) {}
  std::vector<Recompute> policy();

 private:
  Choice choose(int rank);
  int64_t peak(int rank, const Choice& choice);
  Choice least(int rank);
  void apply(int rank, const Choice& choice, std::vector<Recompute>& policy) const;
  int64_t blocks(int rank) const { return static_cast<int64_t>(blocks_[static_cast<size_t>(rank)].size()); }
  [[noreturn]] void refuse();

  const Config& config_;
  MeshShape shape_;
  LoweredSchedule schedule_;
  std::vector<std::vector<size_t>> blocks_;          ///< of each pipeline rank
  std::map<std::pair<int, Choice>, int64_t> known_;  ///< peak bytes by pipeline rank and choice
};

void Budget::apply(int rank, const Choice& choice, std::vector<Recompute>& policy) const {
  const std::vector<size_t>& blocks = blocks_[static_cast<size_t>(rank)];
  for (size_t i = 0; i < blocks.size(); ++i) {
    const auto place = static_cast<int64_t>(i);
    policy[blocks[i]] = place < choice.full ? Recompute::kFull : place < choice.full + choice.selective ? Recompute::kSelective : Recompute::kNone;
  }
}

int64_t Budget::peak(int rank, const Choice& choice) {
  const auto [known, added] = known_.try_emplace({rank, choice}, 0);
  if (added) {
    std::vector<Recompute> policy(static_cast<size_t>(config_.model.layers), Recompute::kNone);
    apply(rank, choice, policy);
    for (const int of : ranks_to_forecast(config_, rank))
      known->second = std::max(known->second, forecast_memory(config_, of, shape_.world(), policy, schedule_).peak_total);
  }
  return known->second;
}

void Budget::refuse() {
  int64_t most = 0;
  int most_rank = 0;
  for (int rank = 0; rank < shape_.pipeline; ++rank) {
    const int64_t bytes = peak(rank, least(rank));
    if (bytes > most) most_rank = rank;
    most = std::max(most, bytes);
  }
  throw ConfigError(concat("training.recompute_budget=", *config_.training.recompute_budget, ": pipeline rank ", most_rank, " needs ", most,
                           " bytes even with maximal recomputation of its ", counted(blocks(most_rank), "block"), "; allowed at least ", most,
                           "; nearest valid ", most));
}

/// The choice with the lowest peak. The last block's backward starts with the activations of all other blocks alive. With full recomputation it also
/// holds the results of attention then; with selective recomputation it computes them after the MLP's activations are freed.
Choice Budget::least(int rank) {
  const int64_t n = blocks(rank);
  const Choice all{n, 0}, all_but_one{n - 1, 1};
  return peak(rank, all) <= peak(rank, all_but_one) ? all : all_but_one;
}

Choice Budget::choose(int rank) {
  const int64_t n = blocks(rank), budget = *config_.training.recompute_budget;
  const auto fits = [&](int64_t full, int64_t selective) { return peak(rank, {full, selective}) <= budget; };
  if (fits(0, 0)) return {};
  const Choice smallest_peak = least(rank);
  if (!fits(smallest_peak.full, smallest_peak.selective)) refuse();
  const Cost cost = cost_of_a_block(config_);
  const auto again = [&](const Choice& choice) {
    return static_cast<double>(choice.full) * cost.full + static_cast<double>(choice.selective) * cost.selective;
  };
  // Recomputing one more block in full pays if it spares several blocks the recomputation of attention.
  Choice best = smallest_peak;
  int64_t selective = n;
  for (int64_t full = smallest(n, [&](int64_t f) { return fits(f, n - f); }); again({full, 0}) < again(best); ++full) {
    selective = smallest(std::min(selective, n - full), [&](int64_t s) { return fits(full, s); });
    if (const Choice choice{full, selective}; again(choice) < again(best)) best = choice;
  }
  TRIREME_CHECK(fits(best.full, best.selective), "rank ", rank, ": ", best.full, " full and ", best.selective, " selective blocks do not fit");
  return best;
}

std::vector<Recompute> Budget::policy() {
  std::vector<Recompute> policy(static_cast<size_t>(config_.model.layers), Recompute::kNone);
  for (int rank = 0; rank < shape_.pipeline; ++rank) apply(rank, choose(rank), policy);
  return policy;
}

}  // namespace

std::vector<Recompute> recompute_policy(const Config& config) {
  const TrainingConfig& training = config.training;
  if (training.recompute == RecomputeMode::kBudget) return Budget(config).policy();
  std::vector<Recompute> policy(static_cast<size_t>(config.model.layers), Recompute::kNone);
  for (size_t block = 0; block < policy.size(); ++block) {
    if (training.recompute == RecomputeMode::kNone || static_cast<int64_t>(block) % training.recompute_every != 0) continue;
    policy[block] = training.recompute == RecomputeMode::kFull ? Recompute::kFull : Recompute::kSelective;
  }
  return policy;
}

std::string recompute_text(const Config& config, const std::vector<int>& stage_rank, const std::vector<Recompute>& policy) {
  std::string text;
  const auto blocks = blocks_of_ranks(config, stage_rank);
  for (size_t rank = 0; rank < blocks.size(); ++rank) {
    const auto count = [&](Recompute what) { return std::ranges::count(blocks[rank], what, [&](size_t block) { return policy[block]; }); };
    text += concat(rank > 0 ? "\n" : "", "recompute: rank ", rank, " keeps ", count(Recompute::kNone), " of ", counted(blocks[rank].size(), "block"),
                   ", ", count(Recompute::kSelective), " selective, ", count(Recompute::kFull), " full");
  }
  return text;
}

}  // namespace trireme
