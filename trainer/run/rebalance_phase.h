#pragma once
#include <cstdint>
#include <optional>
#include <vector>

#include "trainer/run/metrics_sink.h"
#include "trainer/run/rebalancer.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"

namespace trireme {

/// Moves micro-batches from slow data ranks to fast ones (resilience.rebalance).
class RebalancePhase final : public RunPhase {
 public:
  explicit RebalancePhase(RunContext& run) : run_(run) {}

  /// Continues with the split of the checkpoint. If the steps after it have been trained with this key before, they are split as they were then, so that
  /// they have the same bits. Splits of another layout, and decisions beside them, are dropped. Collective.
  void resume(const Resumed& resumed) override;
  /// Logs the decisions that this job repeats, because their own lines are gone from metrics.jsonl until their steps are trained again, and this job may
  /// end before that.
  void announce() override;
  /// Measures the data ranks. Collective.
  void add_seconds(double seconds) override;
  void add_figures(int64_t step, nlohmann::ordered_json& fields) const override;
  /// Decides how the following steps are split. All ranks decide alike, because they have the same seconds.
  void after_step(int64_t step) override;

 private:
  std::vector<double> seconds_of_data_ranks();

  RunContext& run_;
  std::optional<Rebalancer> rebalancer_;   ///< with resilience.rebalance
  std::vector<double> data_rank_seconds_;  ///< with it: compute of the last finished step, the same on all ranks
  LoggedSplits logged_splits_;             ///< with it: those of an earlier job in the steps that this one repeats
};

}  // namespace trireme
