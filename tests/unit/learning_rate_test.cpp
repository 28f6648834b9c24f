// Learning-rate schedules against hand-computed values.
#include <vector>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/loop/learning_rate.h"

using namespace trireme;

namespace {

struct Row {
  LearningRateSchedule name;
  int64_t warmup;
  Auto<int64_t> decay;
  int64_t step;
  double expected;
};

OptimizerConfig optimizer_with(double rate) {
  OptimizerConfig optimizer;
  optimizer.learning_rate = rate;
  return optimizer;
}

}  // namespace

TEST_CASE("learning rate: every schedule, peak 1, final 0.1, 100 steps", "[learning_rate]") {
  const std::vector<Row> rows{
      {LearningRateSchedule::kConstant, 0, {}, 1, 1.0},
      {LearningRateSchedule::kConstant, 0, {}, 100, 1.0},
      {LearningRateSchedule::kConstant, 4, {}, 1, 0.25},
      {LearningRateSchedule::kConstant, 4, {}, 3, 0.75},
      {LearningRateSchedule::kConstant, 4, {}, 4, 1.0},
      {LearningRateSchedule::kConstant, 4, {}, 5, 1.0},
      {LearningRateSchedule::kLinear, 0, {}, 50, 0.55},
      {LearningRateSchedule::kLinear, 0, {}, 100, 0.1},
      {LearningRateSchedule::kLinear, 20, {}, 10, 0.5},
      {LearningRateSchedule::kLinear, 20, {}, 20, 1.0},
      {LearningRateSchedule::kLinear, 20, {}, 60, 0.55},
      {LearningRateSchedule::kLinear, 20, {}, 100, 0.1},
      {LearningRateSchedule::kCosine, 20, {}, 10, 0.5},
      {LearningRateSchedule::kCosine, 20, {}, 20, 1.0},
      {LearningRateSchedule::kCosine, 20, {}, 60, 0.55},
      {LearningRateSchedule::kCosine, 20, {}, 100, 0.1},
      {LearningRateSchedule::kCosine, 10, {}, 40, 0.775},
      {LearningRateSchedule::kCosine, 10, {}, 70, 0.325},  // a third and two thirds: cos 60 = 0.5, cos 120 = -0.5
      {LearningRateSchedule::kWsd, 20, {}, 20, 1.0},
      {LearningRateSchedule::kWsd, 20, {}, 90, 1.0},
      {LearningRateSchedule::kWsd, 20, {}, 95, 0.55},
      {LearningRateSchedule::kWsd, 20, {}, 100, 0.1},
      {LearningRateSchedule::kWsd, 20, 40, 60, 1.0},
      {LearningRateSchedule::kWsd, 20, 40, 70, 0.775},
      {LearningRateSchedule::kWsd, 20, 40, 100, 0.1},
      {LearningRateSchedule::kWsd, 20, 90, 60, 0.55},
      {LearningRateSchedule::kLinear, 100, {}, 100, 1.0},
      {LearningRateSchedule::kCosine, 200, {}, 100, 0.5},
      {LearningRateSchedule::kWsd, 100, {}, 100, 1.0},
  };
  for (const Row& row : rows) {
    INFO(name_of(row.name) << ", warmup " << row.warmup << ", step " << row.step);
    ScheduleConfig schedule;
    schedule.name = row.name;
    schedule.warmup_steps = row.warmup;
    schedule.decay_steps = row.decay;
    schedule.final_learning_rate = 0.1;
    CHECK(learning_rate(schedule, optimizer_with(1), 8, row.step, 100) == Approx(row.expected).epsilon(1e-14));
  }
}

TEST_CASE("learning rate: scales with the global batch relative to the reference batch", "[learning_rate]") {
  ScheduleConfig schedule;
  schedule.name = LearningRateSchedule::kLinear;
  schedule.final_learning_rate = 0.01;
  OptimizerConfig optimizer = optimizer_with(0.1);
  optimizer.reference_batch_size = 32;
  optimizer.learning_rate_scaling = "none";
  CHECK(learning_rate(schedule, optimizer, 128, 10, 10) == Approx(0.01).epsilon(1e-14));
  optimizer.learning_rate_scaling = "linear";
  CHECK(learning_rate(schedule, optimizer, 128, 10, 10) == Approx(0.04).epsilon(1e-14));
  CHECK(learning_rate(schedule, optimizer, 16, 5, 10) == Approx(0.0275).epsilon(1e-14));
  optimizer.learning_rate_scaling = "sqrt";
  CHECK(learning_rate(schedule, optimizer, 128, 10, 10) == Approx(0.02).epsilon(1e-14));
  optimizer.reference_batch_size.reset();
  CHECK_THROWS_AS(learning_rate(schedule, optimizer, 128, 10, 10), InternalError);
}

TEST_CASE("learning rate: a run of fewer than ten steps decays in its last step", "[learning_rate]") {
  ScheduleConfig schedule;
  schedule.name = LearningRateSchedule::kWsd;
  schedule.final_learning_rate = 0.1;
  for (const int64_t steps : {1, 2, 5, 9}) {
    CAPTURE(steps);
    CHECK(learning_rate(schedule, optimizer_with(1), 8, steps, steps) == Approx(0.1).epsilon(1e-14));
    if (steps > 1) CHECK(learning_rate(schedule, optimizer_with(1), 8, steps - 1, steps) == 1.0);
  }
}
