#include "trainer/run/rejected_steps.h"

#include <cmath>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"

namespace trireme {

void RejectedSteps::add(int64_t step, const StepResult& result) {
  if (result.accepted) count_ = 0;
  if (result.accepted || result.overflow) return;
  ++count_;
  last_ = step;
  const std::string gradient = concat("the gradient", result.offender.empty() ? "" : " of " + result.offender);
  if (result.over_limit)
    reason_ = "its loss or gradient norm is anomalous";
  else
    reason_ = std::isfinite(result.loss) ? gradient + " is not finite" : concat("the loss and ", gradient, " are not finite");
}

std::string RejectedSteps::text() const {
  if (count_ == 1 && last_ > 0) return concat("step ", last_, " was rejected", by_, ", because ", reason_);
  const std::string many = concat(counted(count_, "step was rejected", "steps in a row were rejected"), by_);
  if (last_ == 0) return many;  // all rejected before this start
  return concat(many, ", the last of them step ", last_, ", because ", reason_);
}

}  // namespace trireme
