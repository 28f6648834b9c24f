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
  reason_ = concat(std::isfinite(result.loss) ? "" : "the loss and ", "the gradient", result.offender.empty() ? "" : " of " + result.offender);
}

std::string RejectedSteps::text() const {
  const std::string many = concat(counted(count_, "step was rejected", "steps in a row were rejected"));
  if (last_ == 0) return many;  // all rejected before this start
  return concat(many, ", the last of them step ", last_, ", because ", reason_, reason_.starts_with("the loss") ? " are" : " is", " not finite");
}

}  // namespace trireme
