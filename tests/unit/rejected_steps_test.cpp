#include "trainer/run/rejected_steps.h"

#include <limits>

#include "tests/support/catch.h"

using namespace trireme;
using Catch::Matchers::Contains;

namespace {

StepResult accepted() { return {}; }

StepResult rejected(double loss = 2.5) {
  StepResult result;
  result.loss = loss;
  result.accepted = false;
  result.offender = "head.weight";
  return result;
}

StepResult overflow() {
  StepResult result = rejected();
  result.overflow = true;
  return result;
}

}  // namespace

TEST_CASE("rejected steps: only consecutive ones reach the limit, and an accepted step resets the count") {
  RejectedSteps steps(3);
  for (const int64_t step : {1, 2}) steps.add(step, rejected());
  CHECK_FALSE(steps.limit_reached());
  steps.add(3, accepted());
  CHECK(steps.count() == 0);
  for (const int64_t step : {4, 5}) steps.add(step, rejected());
  CHECK_FALSE(steps.limit_reached());
  steps.add(6, rejected());
  CHECK(steps.limit_reached());
  CHECK(steps.text() == "3 steps in a row were rejected, the last of them step 6, because the gradient of head.weight is not finite");
}

TEST_CASE("rejected steps: a loss-scale overflow neither counts nor resets the count") {
  RejectedSteps falling(3);
  for (int64_t step = 1; step <= 24; ++step) falling.add(step, overflow());  // from the largest scale to the smallest
  CHECK(falling.count() == 0);
  CHECK_FALSE(falling.limit_reached());
  RejectedSteps mixed(3);
  mixed.add(1, rejected());
  mixed.add(2, overflow());
  mixed.add(3, rejected());
  mixed.add(4, overflow());
  CHECK_FALSE(mixed.limit_reached());
  mixed.add(5, rejected());
  CHECK(mixed.limit_reached());
}

TEST_CASE("rejected steps: the count continues at a resume") {
  RejectedSteps steps(20, 19);
  CHECK_FALSE(steps.limit_reached());
  CHECK(steps.text() == "19 steps in a row were rejected");  // the previous run has reported the reason
  steps.add(21, rejected(std::numeric_limits<double>::quiet_NaN()));
  CHECK(steps.limit_reached());
  CHECK_THAT(steps.text(), Contains("step 21, because the loss and the gradient of head.weight are not finite"));
}

TEST_CASE("rejected steps: those of an island, as another island knows them") {
  RejectedSteps steps(2, 0, " by island 1");
  steps.add(4, rejected());
  RejectedSteps other(2, steps.state());
  CHECK_FALSE(other.limit_reached());
  CHECK(other.text() == "step 4 was rejected by island 1, because the gradient of head.weight is not finite");
  other.add(5, rejected());
  CHECK(other.limit_reached());
  CHECK(steps.count() == 1);
}

TEST_CASE("rejected steps: a limit of 0 means no limit") {
  RejectedSteps steps(0);
  for (int64_t step = 1; step <= 1000; ++step) steps.add(step, rejected());
  CHECK(steps.count() == 1000);
  CHECK_FALSE(steps.limit_reached());
}
