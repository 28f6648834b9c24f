#include "trainer/resilience/restart_policy.h"

#include <algorithm>

#include "kernels/core/check.h"

namespace trireme {

RestartPolicy::Decision RestartPolicy::after(const Failure& failure) {
  constexpr int kSteepest = 6;  // 2^6 s is over the limit
  constexpr int64_t kLongest = 60;
  const bool started = failure.step > 0;
  const bool progress = last_ && failure.saved > last_->saved;
  if (last_ && !progress && started && failure.step == last_->step && !failure.elsewhere)
    return {{}, concat("step ", failure.step, " has failed twice in a row, with no new checkpoint in between")};
  if (started || progress || !last_) last_ = failure;
  if (used_ == restarts_) return {{}, restarts_ == 1 ? "the only restart is used up" : concat("all ", restarts_, " restarts are used up")};
  ++used_;
  in_a_row_ = progress ? 0 : in_a_row_;
  const int nth = in_a_row_++;
  return {std::chrono::seconds(nth == 0 ? 0 : std::min(kLongest, int64_t{1} << std::min(nth - 1, kSteepest))), {}};
}

}  // namespace trireme
