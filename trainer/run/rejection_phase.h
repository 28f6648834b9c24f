#pragma once
#include <cstdint>
#include <optional>
#include <string>

#include "trainer/run/rejected_steps.h"
#include "trainer/run/run_context.h"
#include "trainer/run/run_phase.h"
#include "trainer/run/save_phase.h"

namespace trireme {

/// Ends a run whose steps are rejected one after the other.
class RejectionPhase final : public RunPhase {
 public:
  RejectionPhase(RunContext& run, SavePhase& saves) : run_(run), saves_(saves) {}

  void resume(const Resumed& resumed) override;
  void count(int64_t step, const StepResult& result) override;
  /// Tells all ranks what the islands have decided alone in the round that has ended. Collective.
  void at_round_end(int64_t step) override;
  void add_state(int64_t step, SavedState& state) const override;

  bool has_diverged() const { return most_rejected().limit_reached(); }
  /// Called before a save: a diverged state must not be saved, as it would displace a good checkpoint.
  void end_if_diverged();
  /// Called when the training of this job ends, before its last save. Success would say that there is a trained model. Overflows of the loss scale alone are
  /// no failure of a job that ends before the last step, as the scale may be on its way down.
  void end_if_untrained();
  void warn_at_end();

 private:
  /// Those of the island that has rejected most steps in a row.
  const RejectedSteps& most_rejected() const { return most_rejected_ ? *most_rejected_ : rejected_; }
  std::string checkpoint_before_rejections() const;

  RunContext& run_;
  SavePhase& saves_;
  RejectedSteps rejected_;                      ///< up to the last reported step; of this rank's island
  std::optional<RejectedSteps> most_rejected_;  ///< with several islands, of the one that rejected most steps in a row, after the last round
};

}  // namespace trireme
