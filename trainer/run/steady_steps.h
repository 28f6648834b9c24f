#pragma once
#include <deque>
#include <optional>

namespace trireme {

/// Seconds of the steps that did nothing but train, which is what a forecast of the step time describes.
class SteadySteps {
 public:
  void add(double seconds);
  /// The run did something else than training steps: evaluated, saved, compared replicas or wrote a trace. The next step finds cold caches.
  void interrupt() { skip_ = skip_ > 0 ? skip_ : 1; }
  /// The median of the newest steps; nullopt if it says nothing about a forecast. That is so with fewer than 10 steady steps, and below 10 ms, where
  /// most of a step are fixed costs of starting operations and of the operating system, which a forecast does not contain.
  std::optional<double> median() const;

 private:
  int skip_ = 5;  ///< steps not to count: the first ones allocate buffers and fault pages in
  std::deque<double> seconds_;
};

}  // namespace trireme
