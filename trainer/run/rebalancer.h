#pragma once
#include <optional>
#include <vector>

#include "trainer/layout/micro_batch_split.h"

namespace trireme {

/// max / mean - 1: by which share of the mean the slowest data rank takes longer than the mean. 0 if all are 0.
double excess_of_slowest(const std::vector<double>& seconds);

/// Decides for resilience.rebalance how the micro-batches of later steps are split. Its input is the same on all ranks, and so are its decisions.
class Rebalancer {
 public:
  static constexpr size_t kWindow = 20;  ///< steps

  explicit Rebalancer(Config config) : config_(std::move(config)) {}

  struct Decision {
    MicroBatchSplit split;
    std::vector<double> seconds;  ///< median of a step's compute by data rank, in the window
  };
  /// Adds the seconds that each data rank computed in a step with `split`. After each kWindow steps the decision, if another split shortens the step by
  /// 5 % or more: less may be noise, and each change is an event.
  std::optional<Decision> add(const MicroBatchSplit& split, const std::vector<double>& seconds);
  /// Forgets the steps added since the last decision.
  void restart() { window_.clear(); }

 private:
  Config config_;
  std::vector<std::vector<double>> window_;  ///< by step
};

}  // namespace trireme
