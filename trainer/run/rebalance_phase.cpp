#include "trainer/run/rebalance_phase.h"

#include <algorithm>
#include <cmath>
#include <iostream>

#include "trainer/files/strict_json.h"
#include "trainer/machine/collectively.h"

namespace trireme {

namespace {

std::string split_text(const MicroBatchSplit& split) {
  std::string text;
  for (const int count : split) text += concat(text.empty() ? "" : " ", count);
  return text;
}

}  // namespace

void RebalancePhase::resume(const Resumed& resumed) {
  if (run_.config.resilience.rebalance == Rebalance::kNone) return;
  rebalancer_.emplace(run_.config);
  if (!resumed.micro_batches.empty()) {
    if (!is_split_of(run_.config, resumed.micro_batches)) {
      if (run_.reports())
        std::cerr << concat("note: the micro-batches of data ranks in ", resumed.checkpoint, ", ", split_text(resumed.micro_batches),
                            ", are those of another layout or batch size; the run continues with an even split\n");
      return;
    }
    run_.trainer->set_micro_batches(resumed.micro_batches);
  }
  nlohmann::json shared;
  collectively(run_.world, [&] {
    if (!run_.reports() || resumed.checkpoint.empty()) return;
    const LoggedSplits found = MetricsSink::splits_after(run_.directory() / "metrics.jsonl", run_.done);
    shared = {found.last_step, found.after_step};
  });
  shared = parse_value(all_gather_strings(run_.world, shared.dump())[0], "rank 0");
  if (shared.is_null()) return;
  shared[0].get_to(logged_splits_.last_step);
  shared[1].get_to(logged_splits_.after_step);
  if (!std::ranges::all_of(logged_splits_.after_step, [&](const auto& logged) { return is_split_of(run_.config, logged.second); }))
    logged_splits_ = {};
}

void RebalancePhase::announce() {
  if (!rebalancer_ || run_.done == 0) return;
  nlohmann::ordered_json splits = nlohmann::ordered_json::object();
  for (const auto& [after, split] : logged_splits_.after_step) splits[std::to_string(after)] = split;
  run_.reporter.event("rebalance_again", run_.done, {{"last_step", std::max(run_.done, logged_splits_.last_step)}, {"micro_batches", splits}});
}

/// A data rank is as slow as the slowest of its ranks. Collective.
std::vector<double> RebalancePhase::seconds_of_data_ranks() {
  std::vector<double> seconds(run_.trainer->batches().split().size(), 0.0);
  seconds[static_cast<size_t>(run_.trainer->batches().data_rank())] = run_.clock.figures->busy_seconds();
  return all_reduce_scalars(run_.world, seconds, ReduceOp::kMax);
}

void RebalancePhase::add_seconds(double) {
  if (rebalancer_) data_rank_seconds_ = seconds_of_data_ranks();
}

void RebalancePhase::add_figures(int64_t, nlohmann::ordered_json& fields) const {
  if (rebalancer_) fields["imbalance"] = excess_of_slowest(data_rank_seconds_);
}

void RebalancePhase::after_step(int64_t step) {
  if (!rebalancer_) return;
  const MicroBatchSplit before = run_.trainer->batches().split();
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
  run_.trainer->set_micro_batches(decision->split);
  nlohmann::ordered_json fields = {{"from_step", step + 1}, {"micro_batches", decision->split}, {"micro_batches_before", before}};
  fields.update(measured);
  run_.reporter.event("rebalance", step, fields,
                      concat("step ", step, ": the micro-batches of the data ranks, ", split_text(before), ", become ", split_text(decision->split),
                             " from step ", step + 1, " on, as ", reason));
  run_.clock.interrupt();
}

}  // namespace trireme
