#pragma once
#include <cstdint>
#include <string>

#include "trainer/loop/trainer.h"

namespace trireme {

/// Rejected steps in a row. A rejected step leaves the weights as they are, so only other data can make the next one better: after many of them the run has
/// diverged. A step that overflows is no rejection: the loss scale is smaller afterwards, and from its minimum on such a step is rejected like any other. It
/// does not end a row either, for it has not changed the weights. The count is part of the run's state, or a job that is started again and again would never
/// reach the limit. The same on every rank.
class RejectedSteps {
 public:
  /// `limit`: training.max_rejected_steps. `count`: up to the step that the run goes on from.
  explicit RejectedSteps(int64_t limit = 0, int64_t count = 0) : limit_(limit), count_(count) {}

  void add(int64_t step, const StepResult& result);
  int64_t count() const { return count_; }
  bool limit_reached() const { return limit_ > 0 && count_ >= limit_; }
  /// How many, up to which step, and why: "20 steps in a row were rejected, the last of them step 21, because ...".
  std::string text() const;

 private:
  int64_t limit_, count_;
  int64_t last_ = 0;  ///< the last rejected one that was added
  std::string reason_;
};

}  // namespace trireme
