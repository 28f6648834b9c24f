#pragma once
#include <cstdint>

#include "trainer/run/metrics_sink.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"

namespace trireme {

/// The order in which gradients arrive, or weights with elastic averaging (training.asynchronous).
class ArrivalPhase final : public RunPhase {
 public:
  explicit ArrivalPhase(RunContext& run) : run_(run) {}

  /// Reads training.asynchronous.replay before the run directory is touched, so that a run that is refused changes nothing. Collective.
  void read_replay();
  /// Steps after the checkpoint that an earlier job of this run has trained are repeated in the order of its arrivals, so that they have the same bits;
  /// the others follow training.asynchronous.replay. The order of a job with other rules is dropped. Collective.
  void resume(const Resumed& resumed) override;
  /// Logs the order that this job repeats, because its own lines are gone from metrics.jsonl until their steps are trained again, and this job may end
  /// before that.
  void announce() override;
  void count(int64_t step, const StepResult& result) override;
  /// Reports how many gradients or exchanges of this job had each staleness.
  void at_round_end(int64_t step) override;

 private:
  RunContext& run_;
  LoggedOrder logged_order_;      ///< of the steps that an earlier job has trained, and this one repeats
  LoggedOrder replayed_order_;    ///< of training.asynchronous.replay
  StalenessHistogram staleness_;  ///< of the gradients or exchanges of this job
};

}  // namespace trireme
