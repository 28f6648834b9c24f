#include "trainer/resilience/restart_policy.h"

#include <algorithm>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {

RestartPolicy::Decision RestartPolicy::after(const Failure& failure) {
  constexpr int kSteepest = 6;  // 2^6 s is over the limit
  constexpr int64_t kLongest = 60;
  const std::optional<Failure> last = std::exchange(last_, failure);
  const bool progress = last && failure.saved > last->saved;
  if (last && !progress && failure.step == last->step)
    return {{},
            failure.step == 0 ? std::string("the job has failed before its first step twice in a row")
                              : concat("step ", failure.step, " has failed twice in a row, with no new checkpoint in between")};
  if (used_ == restarts_) return {{}, concat("all ", restarts_, " restarts are used")};
  ++used_;
  in_a_row_ = progress ? 0 : in_a_row_;
  const int nth = in_a_row_++;
  return {std::chrono::seconds(nth == 0 ? 0 : std::min(kLongest, int64_t{1} << std::min(nth - 1, kSteepest))), {}};
}

}  // namespace trireme
