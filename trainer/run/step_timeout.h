#pragma once
#include <cstdint>
#include <deque>

namespace trireme {

/// Seconds without progress after which a rank counts as hung during training: five median steps, but at least `shortest`. `longest` in the first steps,
/// which allocate buffers, and until a step in which islands wait for the slowest of them has finished. On a GPU a step starts before the one before it
/// has finished.
class StepTimeout {
 public:
  explicit StepTimeout(double shortest = 0, double longest = 0) : shortest_(shortest), longest_(longest) {}

  void start(int64_t step, bool waits_for_islands) {
    if (waits_for_islands) waiting_step_ = step;
  }
  /// `step` has finished, `seconds` after the one before it.
  void finish(int64_t step, double seconds);
  double seconds() const;

 private:
  double shortest_, longest_;
  std::deque<double> newest_;
  int64_t waiting_step_ = 0;  ///< the last step started in which islands wait, until it has finished; 0: none
};

}  // namespace trireme
