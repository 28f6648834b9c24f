// How a run moves micro-batches from slow data ranks to fast ones (resilience.rebalance).
#include <algorithm>
#include <cmath>
#include <iostream>

#include "trainer/files/strict_json.h"
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

/// Continues with the split of the checkpoint. If the steps after it have been trained with this key before, they are split as they were then, so that
/// they have the same bits. Splits of another layout, and decisions beside them, are dropped. Collective.
void Run::resume_split(const Resumed& resumed) {
  if (config_.resilience.rebalance == Rebalance::kNone) return;
  rebalancer_.emplace(config_);
  if (!resumed.micro_batches.empty()) {
    if (!is_split_of(config_, resumed.micro_batches)) {
      if (reports())
        std::cerr << concat("note: the micro-batches of data ranks in ", resumed.checkpoint, ", ", split_text(resumed.micro_batches),
                            ", are those of another layout or batch size; the run continues with an even split\n");
      return;
    }
    trainer_->set_micro_batches(resumed.micro_batches);
  }
  nlohmann::json shared;
  collectively(world_, [&] {
    if (!reports() || resumed.checkpoint.empty()) return;
    const LoggedSplits found = MetricsSink::splits_after(directory() / "metrics.jsonl", done_);
    shared = {found.last_step, found.after_step};
  });
  shared = parse_value(all_gather_strings(world_, shared.dump())[0], "rank 0");
  if (shared.is_null()) return;
  shared[0].get_to(logged_splits_.last_step);
  shared[1].get_to(logged_splits_.after_step);
  if (!std::ranges::all_of(logged_splits_.after_step, [&](const auto& logged) { return is_split_of(config_, logged.second); })) logged_splits_ = {};
}

/// Logs the decisions that this job repeats, because their own lines are gone from metrics.jsonl until their steps are trained again, and this job may
/// end before that.
void Run::report_logged_splits() {
  if (!rebalancer_ || done_ == 0) return;
  nlohmann::ordered_json splits = nlohmann::ordered_json::object();
  for (const auto& [after, split] : logged_splits_.after_step) splits[std::to_string(after)] = split;
  reporter_.event("rebalance_again", done_, {{"last_step", std::max(done_, logged_splits_.last_step)}, {"micro_batches", splits}});
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
  nlohmann::ordered_json measured = nlohmann::ordered_json::object();
  std::string reason = "an earlier job decided";  // by seconds that this job has not measured
  if (step <= logged_splits_.last_step) {
    const auto logged = logged_splits_.after_step.find(step);
    if (logged == logged_splits_.after_step.end()) return;
    decision = {logged->second, {}};
    rebalancer_->restart();
  } else if (decision) {
    const double imbalance = excess_of_slowest(decision->seconds);
    measured = {{"compute_seconds", decision->seconds}, {"imbalance", imbalance}};
    reason = concat("the slowest rank takes ", std::lround(100 * imbalance), " % longer than the mean");
  }
  if (!decision) return;
  trainer_->set_micro_batches(decision->split);
  nlohmann::ordered_json fields = {{"from_step", step + 1}, {"micro_batches", decision->split}, {"micro_batches_before", before}};
  fields.update(measured);
  reporter_.event("rebalance", step, fields,
                  concat("step ", step, ": the micro-batches of the data ranks, ", split_text(before), ", become ", split_text(decision->split),
                         " from step ", step + 1, " on, as ", reason));
  continue_training();
}

}  // namespace trireme
