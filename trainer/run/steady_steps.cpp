#include "trainer/run/steady_steps.h"

#include <algorithm>
#include <vector>

namespace trireme {

void SteadySteps::add(double seconds) {
  constexpr size_t kWindow = 1000;
  if (skip_ > 0) {
    --skip_;
    return;
  }
  if (seconds_.size() == kWindow) seconds_.pop_front();
  seconds_.push_back(seconds);
}

std::optional<double> SteadySteps::median() const {
  constexpr size_t kFewest = 10;
  constexpr double kShortest = 0.01;
  if (seconds_.size() < kFewest) return {};
  std::vector<double> sorted(seconds_.begin(), seconds_.end());
  const auto middle = sorted.begin() + static_cast<ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end());
  return *middle < kShortest ? std::optional<double>() : *middle;
}

}  // namespace trireme
