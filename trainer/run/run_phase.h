#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>

#include "trainer/loop/trainer.h"
#include "trainer/run/checkpoint_manager.h"
#include "trainer/run/resume.h"

namespace trireme {

/// A concern of a run beside its steps, with the state of that concern. A run calls each hook of all phases in the order of RunContext::phases, on all
/// ranks alike unless the hook says otherwise, so a hook may be collective. A phase overrides the hooks that it needs.
class RunPhase {
 public:
  RunPhase() = default;
  virtual ~RunPhase() = default;
  RunPhase(const RunPhase&) = delete;
  RunPhase& operator=(const RunPhase&) = delete;

  /// The job has loaded this state, and may find once it has the lock on the run directory that a newer one is there: then it loads that.
  virtual void load(const Resumed&) {}
  /// The job holds the lock on the run directory, in which it has changed nothing yet, and continues from this state.
  virtual void resume(const Resumed&) {}
  /// Rank 0: events can be reported, and the first ones, about the start of the job, have been.
  virtual void announce() {}
  /// The last hook before the first step: all that phases share is there.
  virtual void open() {}
  virtual void before_step(int64_t /*step*/) {}
  /// The seconds of a step that has ended, before anything of it is reported.
  virtual void add_seconds(double /*seconds*/) {}
  /// Adds to the line of a step.
  virtual void add_figures(int64_t /*step*/, nlohmann::ordered_json& /*fields*/) const {}
  /// A step has been reported. On a GPU the next one has been started. Within an island this is the same on all ranks.
  virtual void count(int64_t /*step*/, const StepResult&) {}
  virtual void after_step(int64_t /*step*/) {}
  /// All islands have ended the round that `step` ends, and have the same shared weights.
  virtual void at_round_end(int64_t /*step*/) {}
  /// Adds what a checkpoint after `step` has of this phase, from which resume() continues.
  virtual void add_state(int64_t /*step*/, SavedState&) const {}
};

}  // namespace trireme
