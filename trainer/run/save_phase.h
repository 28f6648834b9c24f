#pragma once
#include <cstdint>
#include <optional>

#include "trainer/run/job_reports.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"
#include "trainer/run/save_interval.h"

namespace trireme {

/// When a run saves, beside the multiples of checkpoint.every, and what a save costs.
class SavePhase final : public RunPhase {
 public:
  SavePhase(RunContext& run, JobReports& jobs) : run_(run), jobs_(jobs) {}

  /// With checkpoint.every auto rank 0 continues with the interval that an earlier job has chosen.
  void begin_intervals();
  void add_seconds(double seconds) override;
  /// Records what the last save has made of checkpoint.every auto, and says so if it has changed by more than a fifth.
  void at_round_end(int64_t step) override;

  /// A signal has requested a save.
  bool is_requested() const { return request_.requested(); }
  /// Rank 0: checkpoint.every auto wants a save after `step`.
  bool is_due(int64_t step) const { return interval_ && interval_->due(step); }
  /// With checkpoint.every auto: the steps whose checkpoints checkpoint.keep_every and checkpoint.keep_best are about.
  bool saves_anyway(int64_t step) const;
  /// Compares replicas first, so that no inconsistent state replaces the good ones. Collective.
  void save(int64_t step);
  /// Reports a save that has finished in the background, if any.
  void poll();
  /// Waits for the save in progress. Collective.
  void finish();

 private:
  RunContext& run_;
  JobReports& jobs_;
  SaveRequest request_;
  std::optional<SaveInterval> interval_;  ///< rank 0, with checkpoint.every auto, from the first step on
  int64_t reported_interval_ = 0;         ///< with it: the last one in a message
};

}  // namespace trireme
