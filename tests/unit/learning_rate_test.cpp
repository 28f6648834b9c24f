// Learning-rate schedules against hand-computed values.
#include <algorithm>
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
  optimizer.learning_rate_scaling = BatchScaling::kNone;
  CHECK(learning_rate(schedule, optimizer, 128, 10, 10) == Approx(0.01).epsilon(1e-14));
  optimizer.learning_rate_scaling = BatchScaling::kLinear;
  CHECK(learning_rate(schedule, optimizer, 128, 10, 10) == Approx(0.04).epsilon(1e-14));
  CHECK(learning_rate(schedule, optimizer, 16, 5, 10) == Approx(0.0275).epsilon(1e-14));
  optimizer.learning_rate_scaling = BatchScaling::kSqrt;
  CHECK(learning_rate(schedule, optimizer, 128, 10, 10) == Approx(0.02).epsilon(1e-14));
  optimizer.reference_batch_size.reset();
  CHECK_THROWS_AS(learning_rate(schedule, optimizer, 128, 10, 10), InternalError);
}

TEST_CASE("learning rate: no step of a run has the rate 0 unless final_learning_rate says so", "[learning_rate]") {
  const auto rates = [](const ScheduleConfig& schedule, int64_t steps) {
    std::vector<double> all;
    for (int64_t step = 1; step <= steps; ++step) all.push_back(learning_rate(schedule, optimizer_with(1), 8, step, steps));
    return all;
  };
  for (const LearningRateSchedule name :
       {LearningRateSchedule::kConstant, LearningRateSchedule::kLinear, LearningRateSchedule::kCosine, LearningRateSchedule::kWsd})
    for (const int64_t warmup : {0, 1, 2, 7, 50})
      for (const Auto<int64_t>& decay : {Auto<int64_t>(), Auto<int64_t>(1), Auto<int64_t>(3)})
        for (const int64_t steps : {1, 2, 3, 7, 8, 100, 100000}) {
          INFO(name_of(name) << ", warmup " << warmup << ", " << steps << " steps");
          ScheduleConfig schedule{.name = name, .warmup_steps = warmup, .final_learning_rate = {}, .decay_steps = decay};
          const std::vector<double> unset = rates(schedule, steps);
          CHECK(std::ranges::all_of(unset, [](double rate) { return rate > 0; }));
          if (steps > 1 && steps > warmup + 1 && name != LearningRateSchedule::kConstant) CHECK(unset.back() < *(unset.end() - 2));
          // In words 0 is 0, and every step before the last is the same.
          schedule.final_learning_rate = 0;
          const std::vector<double> zero = rates(schedule, steps);
          CHECK(std::equal(zero.begin(), zero.end() - 1, unset.begin()));
          if (steps > warmup && name != LearningRateSchedule::kConstant) CHECK(zero.back() == 0);
        }
  // One step of a decay that would end one step later: half of the way.
  for (const LearningRateSchedule name : {LearningRateSchedule::kLinear, LearningRateSchedule::kCosine, LearningRateSchedule::kWsd}) {
    const ScheduleConfig one{.name = name, .warmup_steps = 0, .final_learning_rate = {}, .decay_steps = {}};
    CHECK(rates(one, 1).front() == Approx(0.5).epsilon(1e-14));
    ScheduleConfig warm = one;
    warm.warmup_steps = 1;
    CHECK(rates(warm, 2).front() == 1);
    CHECK(rates(warm, 2).back() == Approx(0.5).epsilon(1e-14));
  }
  CHECK(rates({.name = LearningRateSchedule::kLinear, .warmup_steps = 0, .final_learning_rate = {}, .decay_steps = {}}, 9).back() ==
        Approx(0.1).epsilon(1e-14));
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

TEST_CASE("learning rate: a decay of a tenth of the steps is rounded down, and never begins within the warmup", "[learning_rate]") {
  ScheduleConfig schedule;
  schedule.name = LearningRateSchedule::kWsd;
  schedule.final_learning_rate = 0.1;
  const auto rate = [&](int64_t step, int64_t steps) { return learning_rate(schedule, optimizer_with(1), 8, step, steps); };
  CHECK(rate(18, 19) == 1);  // one step
  CHECK(rate(19, 19) == Approx(0.1));
  CHECK(rate(27, 29) == 1);  // two steps
  CHECK(rate(28, 29) == Approx(0.55));
  CHECK(rate(26, 30) == 1);  // three steps
  CHECK(rate(27, 30) == 1);
  CHECK(rate(28, 30) == Approx(0.7));
  CHECK(rate(30, 30) == Approx(0.1));
  schedule.warmup_steps = 28;  // of the three steps two are left
  CHECK(rate(27, 30) == Approx(27 / 28.0));
  CHECK(rate(28, 30) == 1);
  CHECK(rate(29, 30) == Approx(0.55));
  CHECK(rate(30, 30) == Approx(0.1));
}

TEST_CASE("learning rate: an exponential decay, and every decay with a batch that is not the reference batch", "[learning_rate]") {
  OptimizerConfig optimizer;
  optimizer.learning_rate = 0.5;
  optimizer.reference_batch_size = 8;
  optimizer.learning_rate_scaling = BatchScaling::kLinear;  // 32 sequences: the peak is 2, and the end 0.02
  ScheduleConfig schedule;
  schedule.warmup_steps = 20;
  schedule.final_learning_rate = 0.005;
  const auto rate = [&](LearningRateSchedule name, int64_t step) {
    schedule.name = name;
    return learning_rate(schedule, optimizer, 32, step, 100);
  };
  CHECK(rate(LearningRateSchedule::kExponential, 5) == Approx(0.5));
  CHECK(rate(LearningRateSchedule::kExponential, 20) == Approx(2));
  CHECK(rate(LearningRateSchedule::kExponential, 60) == Approx(0.2));  // half of the way to a hundredth
  CHECK(rate(LearningRateSchedule::kExponential, 100) == Approx(0.02));
  CHECK(rate(LearningRateSchedule::kLinear, 40) == Approx(2 - 0.25 * 1.98));
  CHECK(rate(LearningRateSchedule::kCosine, 60) == Approx(1.01));
  CHECK(rate(LearningRateSchedule::kCosine, 100) == Approx(0.02));
  CHECK(rate(LearningRateSchedule::kConstant, 100) == Approx(2));
  schedule.decay_steps = 40;
  CHECK(rate(LearningRateSchedule::kWsd, 60) == Approx(2));
  CHECK(rate(LearningRateSchedule::kWsd, 70) == Approx(2 - 0.25 * 1.98));
  CHECK(rate(LearningRateSchedule::kWsd, 100) == Approx(0.02));
}
