#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "parallel/comm/progress.h"
#include "trainer/loop/trainer.h"
#include "trainer/machine/gpu_sensors.h"
#include "trainer/run/reporter.h"

namespace trireme {

/// Bytes of host memory: what this process has in use, and what any process of the host may still get; 0: unknown. Costs 30 us.
struct HostMemoryUse {
  int64_t resident = 0;
  int64_t available = 0;
};
HostMemoryUse host_memory_use();

/// Figures of single ranks, gathered at most once a second and more rarely with many ranks, so that a step is not slower and metrics.jsonl stays
/// small: the event "ranks". Between two gatherings each rank only adds up. A layer whose gradient was zero in each of the last
/// observe.anomalies.window steps is an event "dead_layer" and a warning, once until it has a gradient again.
class RankFigures {
 public:
  /// `progress` counts the waits of `trainer`'s communicators.
  RankFigures(Trainer& trainer, Progress& progress);

  /// What the rank has done since the last call of either is not part of a step.
  void interrupt();
  /// A step that took `seconds` has ended.
  void add_step(double seconds);
  /// Seconds of the step added last in which this rank did not wait for another one. Only on a CPU: on a GPU the device waits, not the host.
  double busy_seconds() const { return busy_seconds_; }
  /// True if it is time to gather. Only one rank decides.
  bool due() const;
  /// Gathers and reports what was added since the last call; `step` is the last step that was added. Collective.
  void report(int64_t step, Reporter& reporter);

 private:
  nlohmann::ordered_json figures() const;
  void report_dead(const std::vector<LayerGradient>& layers, int64_t step, Reporter& reporter);

  Trainer& trainer_;
  Progress& progress_;
  std::optional<GpuSensors> sensors_;
  int64_t steps_ = 0;
  double seconds_ = 0;
  double busy_seconds_ = 0;
  double input_seconds_ = 0, input_before_ = 0;  ///< like waited_ and waited_before_, of reading samples
  std::vector<double> waited_;                   ///< in these steps, by group of the progress
  std::vector<double> waited_before_;            ///< at the end of the last step or interruption
  std::set<std::string> dead_;                   ///< rank 0: layers that were reported because they have no gradient
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

/// The fields of the event "ranks" from the figures of each rank. A figure that any rank has becomes a list by rank, with null for a rank that lacks
/// it. Of objects each entry becomes its mean over the ranks. imbalance is (max - min) / mean of busy_seconds, and 0 if no rank was busy.
nlohmann::ordered_json merge_rank_figures(const std::vector<nlohmann::ordered_json>& ranks);

}  // namespace trireme
