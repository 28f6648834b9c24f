#pragma once
#include <cstdint>
#include <string>

#include "trainer/loop/trainer.h"

namespace trireme {

/// Counts consecutive rejected steps. A rejected step does not change the weights, so only different data can make the next one succeed: after many
/// of them the run has diverged. An fp16 overflow is not counted, because it lowers the loss scale; at the minimal scale it is a rejection like any
/// other. An overflow does not reset the count either, because it does not change the weights. The count is part of the checkpoint: otherwise a job
/// that is restarted repeatedly would never reach the limit. Equal on every rank, with several islands after each round.
class RejectedSteps {
 public:
  /// `limit`: training.max_rejected_steps. `count`: rejections before the step that the run resumes from.
  explicit RejectedSteps(int64_t limit = 0, int64_t count = 0) : limit_(limit), count_(count) {}

  void add(int64_t step, const StepResult& result);
  int64_t count() const { return count_; }
  /// Islands count by themselves within a round; after it the largest count is that of all. `count`: not less than this one's.
  void raise_to(int64_t count) { count_ = count; }
  bool limit_reached() const { return limit_ > 0 && count_ >= limit_; }
  /// Number, last step and reason: "20 steps in a row were rejected, the last of them step 21, because ...".
  std::string text() const;

 private:
  int64_t limit_, count_;
  int64_t last_ = 0;  ///< the last rejected step since the start; 0: none
  std::string reason_;
};

}  // namespace trireme
