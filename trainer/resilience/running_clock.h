#pragma once
#include <chrono>
#include <utility>

namespace trireme {

/// Seconds in which its owner ran: a jump of more than two is a suspended process or machine, and everybody else's silence no wonder.
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
