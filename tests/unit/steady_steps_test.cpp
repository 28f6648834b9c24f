// The step time that is compared with a forecast.
#include "trainer/run/steady_steps.h"

#include "tests/support/catch.h"

using namespace trireme;

TEST_CASE("steady steps: the median without the first steps and those after an interruption") {
  SteadySteps steps;
  for (int i = 0; i < 5; ++i) steps.add(9);
  for (int i = 0; i < 9; ++i) steps.add(0.5);
  CHECK_FALSE(steps.median());
  for (int i = 0; i < 20; ++i) {
    steps.interrupt();
    steps.interrupt();
    steps.add(7);
  }
  CHECK_FALSE(steps.median());
  steps.add(0.25);
  CHECK(steps.median() == 0.5);
  SteadySteps from_start;
  from_start.interrupt();  // does not shorten the start
  for (int i = 0; i < 5; ++i) from_start.add(9);
  for (int i = 0; i < 10; ++i) from_start.add(0.5);
  CHECK(from_start.median() == 0.5);
}

TEST_CASE("steady steps: no median of a step that consists of fixed costs") {
  SteadySteps steps;
  for (int i = 0; i < 50; ++i) steps.add(0.0099);
  CHECK_FALSE(steps.median());
  for (int i = 0; i < 100; ++i) steps.add(0.011);
  CHECK(steps.median() == 0.011);
}

TEST_CASE("steady steps: the median is that of the newest 1,000") {
  SteadySteps steps;
  for (int i = 0; i < 5; ++i) steps.add(9);
  for (int i = 0; i < 1000; ++i) steps.add(0.5);
  for (int i = 0; i < 499; ++i) steps.add(0.75);
  CHECK(steps.median() == 0.5);
  steps.add(0.75);
  CHECK(steps.median() == 0.75);  // 500 of each, of which the upper one counts
}
