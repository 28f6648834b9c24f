#include "trainer/run/steady_steps.h"

#include "trainer/run/median.h"

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
  const double middle = trireme::median({seconds_.begin(), seconds_.end()});
  return middle < kShortest ? std::optional<double>() : middle;
}

}  // namespace trireme
