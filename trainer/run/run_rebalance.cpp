// How a run moves micro-batches from slow data ranks to fast ones (resilience.rebalance).
#include <cmath>
#include <iostream>

#include "trainer/loop/collectively.h"
#include "trainer/run/metrics_sink.h"
#include "trainer/run/rank_run.h"

namespace trireme {

namespace {

std::string split_text(const MicroBatchSplit& split) {
  std::string text;
  for (const int count : split) text += concat(text.empty() ? "" : " ", count);
  return text;
}

}  // namespace

/// Continues with the split of the checkpoint. If the steps after it have been trained before, they are split as they were then, so that they have the
/// same bits. Splits of another layout are dropped. Collective.
void Run::resume_split(const Resumed& resumed) {
  if (config_.resilience.rebalance == Rebalance::kNone) return;
  rebalancer_.emplace(config_);
  if (!resumed.micro_batches.empty()) {
    if (is_split_of(config_, resumed.micro_batches))
      trainer_->set_micro_batches(resumed.micro_batches);
    else if (reports())
      std::cerr << concat("note: the micro-batches of data ranks in ", resumed.checkpoint, ", ", split_text(resumed.micro_batches),
                          ", are those of another layout; the run continues with an even split\n");
  }
  nlohmann::json shared;
  collectively(world_, [&] {
    if (!reports() || resumed.checkpoint.empty()) return;
    const LoggedSplits found = MetricsSink::splits_after(directory() / "metrics.jsonl", done_);
    shared = {found.last_step, found.after_step};
  });
  shared = nlohmann::json::parse(all_gather_strings(world_, shared.dump())[0]);
  if (shared.is_null()) return;
  shared[0].get_to(logged_splits_.last_step);
  shared[1].get_to(logged_splits_.after_step);
  std::erase_if(logged_splits_.after_step, [&](const auto& logged) { return !is_split_of(config_, logged.second); });
}

/// A data rank is as slow as the slowest of its ranks. Collective.
std::vector<double> Run::seconds_of_data_ranks() {
  std::vector<double> seconds(trainer_->micro_batches().size(), 0.0);
  seconds[static_cast<size_t>(trainer_->data_rank())] = figures_->busy_seconds();
  return all_reduce_scalars(world_, seconds, ReduceOp::kMax);
}

/// Decides after `step` how the following steps are split. All ranks decide alike, because they have the same seconds.
void Run::rebalance(int64_t step) {
  const MicroBatchSplit before = trainer_->micro_batches();
  std::optional<Rebalancer::Decision> decision = rebalancer_->add(before, data_rank_seconds_);
  if (step <= logged_splits_.last_step) {
    const auto logged = logged_splits_.after_step.find(step);
    if (logged == logged_splits_.after_step.end()) return;
    decision = {logged->second, data_rank_seconds_};
    rebalancer_->restart();
  }
  if (!decision) return;
  trainer_->set_micro_batches(decision->split);
  reporter_.event(
      "rebalance", step,
      {{"from_step", step + 1},
       {"micro_batches", decision->split},
       {"micro_batches_before", before},
       {"compute_seconds", decision->seconds},
       {"imbalance", lost_share(decision->seconds)}},
      concat("step ", step, ": the micro-batches of the data ranks, ", split_text(before), ", become ", split_text(decision->split), " from step ",
             step + 1, " on, as the slowest rank takes ", std::lround(100 * lost_share(decision->seconds)), " % longer than the mean"));
  continue_training();
}

}  // namespace trireme
