#pragma once
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "trainer/loop/trainer.h"

namespace trireme {

/// Counts consecutive rejected steps. A rejected step does not change the weights, so only different data can make the next one succeed: after many
/// of them the run has diverged. An fp16 overflow is not counted, because it lowers the loss scale; at the minimal scale it is a rejection like any
/// other. An overflow does not reset the count either, because it does not change the weights. The count is part of the checkpoint: otherwise a job
/// that is restarted repeatedly would never reach the limit. Equal on every rank of an island.
class RejectedSteps {
 public:
  /// `limit`: training.max_rejected_steps. `count`: rejections before the step that the run resumes from. `by`: " by island 1", or "" without islands.
  explicit RejectedSteps(int64_t limit = 0, int64_t count = 0, std::string by = "") : limit_(limit), count_(count), by_(std::move(by)) {}
  /// state() of another island's.
  RejectedSteps(int64_t limit, const nlohmann::json& state)
      : limit_(limit), count_(state.at(0)), last_(state.at(1)), by_(state.at(2)), reason_(state.at(3)) {}
  nlohmann::json state() const { return {count_, last_, by_, reason_}; }

  void add(int64_t step, const StepResult& result);
  int64_t count() const { return count_; }
  bool limit_reached() const { return limit_ > 0 && count_ >= limit_; }
  /// Number, last step and reason: "20 steps in a row were rejected, the last of them step 21, because ...", "step 21 was rejected, because ...".
  std::string text() const;
  /// Why the last step was rejected: "the gradient is not finite"; empty if that was before the start.
  const std::string& reason() const { return reason_; }

 private:
  int64_t limit_, count_;
  int64_t last_ = 0;  ///< the last rejected step since the start; 0: none
  std::string by_, reason_;
};

}  // namespace trireme
