#pragma once
#include <chrono>
#include <utility>

namespace trireme {

/// Seconds in which the owner was running. A jump of more than 2 s means that the process or machine was suspended, and is not counted, because
/// messages of others could not be received.
class RunningClock {
 public:
  double tick() {
    const auto time = std::chrono::steady_clock::now();
    const double passed = std::chrono::duration<double>(time - std::exchange(last_, time)).count();
    return now_ += passed > 2 ? 0 : passed;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
  double now_ = 0;
};

}  // namespace trireme
