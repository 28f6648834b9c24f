#include "trainer/run/step_timeout.h"

#include "tests/support/catch.h"

using namespace trireme;

TEST_CASE("step timeout: the longest in the first steps, then five times the median, at least the shortest") {
  StepTimeout timeout(10, 600);
  for (int64_t step = 1; step <= 3; ++step) {
    CHECK(timeout.seconds() == 600);
    timeout.start(step, false);
    timeout.finish(step, 4);
  }
  CHECK(timeout.seconds() == 20);
  timeout.finish(4, 100);  // an outlier
  CHECK(timeout.seconds() == 20);
  for (int64_t step = 5; step < 40; ++step) timeout.finish(step, 1);
  CHECK(timeout.seconds() == 10);
  for (int64_t step = 40; step < 80; ++step) timeout.finish(step, 7);  // longer sequences: the newest steps count
  CHECK(timeout.seconds() == 35);
}

TEST_CASE("step timeout: the longest until the step in which islands wait has finished, even if the step before finishes meanwhile") {
  StepTimeout timeout(10, 600);
  for (int64_t step = 1; step <= 5; ++step) timeout.finish(step, 4);
  timeout.start(6, false);
  CHECK(timeout.seconds() == 20);
  timeout.start(7, true);  // queued on a GPU while step 6 runs
  CHECK(timeout.seconds() == 600);
  timeout.finish(6, 4);
  CHECK(timeout.seconds() == 600);
  timeout.finish(7, 4);
  CHECK(timeout.seconds() == 20);
}
