#include "trainer/run/step_timeout.h"

#include <algorithm>

#include "trainer/run/median.h"

namespace trireme {

void StepTimeout::finish(int64_t step, double seconds) {
  constexpr size_t kWindow = 21;
  newest_.push_back(seconds);
  if (newest_.size() > kWindow) newest_.pop_front();
  if (step == waiting_step_) waiting_step_ = 0;
}

double StepTimeout::seconds() const {
  constexpr size_t kFewest = 3;
  if (newest_.size() < kFewest || waiting_step_ > 0) return longest_;
  return std::max(shortest_, 5 * median({newest_.begin(), newest_.end()}));
}

}  // namespace trireme
