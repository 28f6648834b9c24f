#include "trainer/run/step_timeout.h"

#include "tests/support/catch.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/flops.h"
#include "trainer/run/checkpoint_manager.h"

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

TEST_CASE("step timeout: the median of the newest 21 steps, and two steps in which islands wait") {
  StepTimeout timeout(10, 600);
  for (int64_t step = 1; step <= 21; ++step) timeout.finish(step, 4);
  for (int64_t step = 22; step <= 31; ++step) timeout.finish(step, 7);
  CHECK(timeout.seconds() == 20);  // eleven steps of 4 s and ten of 7 s
  timeout.finish(32, 7);
  CHECK(timeout.seconds() == 35);
  timeout.start(33, true);
  timeout.start(34, true);
  timeout.finish(33, 7);
  CHECK(timeout.seconds() == 600);  // step 34 waits, too
  timeout.finish(34, 7);
  CHECK(timeout.seconds() == 35);
}

TEST_CASE("state timeout: ten minutes, and what a slow disk needs for weights and moments of a model that is not small") {
  Config config;
  config.model.layers = 2;
  config.model.hidden_size = 8192;
  config.model.heads = 64;
  config.model.vocab_size = 32000;
  config.training.steps = 1;
  config = resolve(config);
  const auto parameters = static_cast<double>(parameter_count(config.model));
  CHECK(parameters > 1e9);
  CHECK(state_timeout(config) == Approx(600 + 12 * parameters / 1e8));  // three fp32 numbers of each, at 100 MB/s
}
