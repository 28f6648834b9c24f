// checkpoint.every auto: the interval follows from what is measured, and a simulated run loses little more time with it than with the best of a sweep.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "tests/support/catch.h"
#include "trainer/plan/analysis/reliability.h"
#include "trainer/run/save_interval.h"

namespace trireme {
namespace {

/// Steps of 1 s up to and including `last`, with saves of `stall` seconds when they are due. Returns the steps that were saved.
std::vector<int64_t> train_in_seconds(SaveInterval& interval, int64_t first, int64_t last, double stall) {
  std::vector<int64_t> saved;
  for (int64_t step = first; step <= last; ++step) {
    interval.add_step(1);
    if (!interval.due(step)) continue;
    interval.saved(step, stall);
    interval.written(stall);
    saved.push_back(step);
  }
  return saved;
}

TEST_CASE("save interval: the first save is early and measures, the next ones follow Daly's formula") {
  SaveInterval interval({.mtbf = 3600, .last_step = 100000});
  const std::vector<int64_t> saved = train_in_seconds(interval, 1, 400, 2);
  const auto expected = std::llround(daly_interval(2, 3600));
  CHECK(expected == 119);
  CHECK(saved == std::vector<int64_t>{10, 10 + expected, 10 + 2 * expected, 10 + 3 * expected});
  const std::optional<SaveInterval::Choice> choice = interval.take_choice();
  REQUIRE(choice);
  CHECK(choice->steps == expected);
  CHECK(choice->save_seconds == Approx(2));
  CHECK(choice->step_seconds == Approx(1));
  CHECK(choice->mtbf == 3600);
  CHECK_FALSE(interval.take_choice());
}

TEST_CASE("save interval: the cost is that of the last ten saves, and the step that of the last hundred") {
  SaveInterval interval({.mtbf = 3600, .last_step = 1000000});
  const auto saves = train_in_seconds(interval, 1, 5000, 2);
  REQUIRE(saves.size() > 10);
  train_in_seconds(interval, 5001, 10000, 8);
  const std::optional<SaveInterval::Choice> choice = interval.take_choice();
  REQUIRE(choice);
  CHECK(choice->save_seconds == Approx(8));
  CHECK(choice->steps == std::llround(daly_interval(8, 3600)));
}

TEST_CASE("save interval: an earlier job's interval continues from the checkpoint") {
  SaveInterval interval({.mtbf = 3600, .step = 500, .last_step = 100000, .save_seconds = 2, .step_seconds = 1});
  CHECK(interval.take_choice()->steps == 119);
  CHECK(train_in_seconds(interval, 501, 750, 2) == std::vector<int64_t>{619, 738});
  // Another failure has become known: the same cost, and a shorter interval at once.
  SaveInterval failed({.failures = 2, .trained_seconds = 400, .step = 500, .last_step = 100000, .save_seconds = 2, .step_seconds = 1});
  CHECK(failed.take_choice()->steps == std::llround(daly_interval(2, 200)));
}

TEST_CASE("save interval: slower steps while the checkpoint is written are part of its cost, and only these") {
  SaveInterval interval({.mtbf = 1800, .last_step = 100000});
  for (int64_t step = 1; step <= 20; ++step) interval.add_step(step <= 3 ? 9 : 1);  // the first steps do not count
  interval.saved(20, 0.5);
  for (int i = 0; i < 4; ++i) interval.add_step(1.25);
  interval.written(4.5);
  CHECK_FALSE(interval.take_choice());  // one step more
  interval.add_step(1.5);
  const std::optional<SaveInterval::Choice> choice = interval.take_choice();
  REQUIRE(choice);
  CHECK(choice->save_seconds == Approx(0.5 + 4 * 0.25 + 0.5));
  CHECK(choice->step_seconds == 1);
  // Faster steps during a save do not make it cheaper than its stall.
  SaveInterval fast({.mtbf = 1800, .last_step = 100000});
  for (int64_t step = 1; step <= 20; ++step) fast.add_step(1);
  fast.saved(20, 0.5);
  fast.written(0.5);
  fast.add_step(0.25);
  CHECK(fast.take_choice()->save_seconds == Approx(0.5));
}

TEST_CASE("save interval: is chosen again if steps become slower, not if one is slow") {
  SaveInterval interval({.mtbf = 3600, .last_step = 100000});
  CHECK(train_in_seconds(interval, 1, 30, 2) == std::vector<int64_t>{10});
  CHECK(interval.take_choice()->steps == 119);
  interval.add_step(1.5);
  CHECK_FALSE(interval.take_choice());
  int64_t step = 32;
  while (!interval.due(step) && step < 200) interval.add_step(++step > 0 ? 4 : 0);
  CHECK(step < 70);  // not at step 129; what it compares are the means of 28 and 56 steps
  const std::optional<SaveInterval::Choice> choice = interval.take_choice();
  REQUIRE(choice);
  CHECK(choice->steps == std::llround(daly_interval(2, 3600) / choice->step_seconds));
  CHECK(choice->step_seconds > 2);
}

TEST_CASE("save interval: bounds") {
  const auto choice_of = [](SaveInterval::Start start, double stall, std::optional<double> write) {
    SaveInterval interval(start);
    for (int i = 0; i < 10; ++i) interval.add_step(1);
    interval.saved(10, stall);
    interval.written(write);
    interval.add_step(1);
    return interval.take_choice()->steps;
  };
  CHECK(choice_of({.mtbf = 0.1, .last_step = 1000}, 0.01, 0.01) == 1);  // at least a step
  CHECK(choice_of({.mtbf = 1e9, .last_step = 1000}, 10, 10) == 990);    // at most the rest of the run
  CHECK(choice_of({.mtbf = 1e9, .last_step = 10}, 10, 10) == 1);
  CHECK(choice_of({.mtbf = 100, .last_step = 1000}, 0.02, 30) == 30);           // not shorter than the writing of a checkpoint
  CHECK(choice_of({.mtbf = 100, .last_step = 1000}, 0.02, std::nullopt) == 2);  // of a failed save only the stall is known
}

TEST_CASE("save interval: a resumed job saves early unless cost and speed are known, and looks at its speed after a hundred steady steps") {
  for (const auto& [cost, speed] : {std::pair(0.0, 0.0), {2.0, 0.0}, {0.0, 1.0}}) {
    SaveInterval unknown({.mtbf = 3600, .step = 500, .last_step = 100000, .save_seconds = cost, .step_seconds = speed});
    CHECK_FALSE(unknown.take_choice());
    CHECK_FALSE(unknown.due(509));
    CHECK(unknown.due(510));
  }
  SaveInterval near_the_end({.mtbf = 3600, .step = 500, .last_step = 560, .save_seconds = 2, .step_seconds = 1});
  CHECK(near_the_end.take_choice()->steps == 560 - 500);  // not 119
  CHECK_FALSE(near_the_end.due(559));
  CHECK(near_the_end.due(560));
  for (const auto& [seconds, again] : {std::pair(1.25, false), {1.26, true}, {0.75, false}, {0.74, true}}) {
    CAPTURE(seconds);
    SaveInterval interval({.mtbf = 3600, .step = 500, .last_step = 100000, .save_seconds = 2, .step_seconds = 1});
    CHECK(interval.take_choice()->steps == 119);
    for (int i = 0; i < 3; ++i) interval.add_step(50);  // the first steps do not count
    for (int i = 0; i < 99; ++i) interval.add_step(seconds);
    CHECK_FALSE(interval.take_choice());
    interval.add_step(seconds);
    const std::optional<SaveInterval::Choice> choice = interval.take_choice();
    CHECK(choice.has_value() == again);
    if (!choice) continue;
    CHECK(choice->step_seconds == Approx(seconds));
    CHECK(choice->save_seconds == 2);
    CHECK(choice->steps == std::llround(daly_interval(2, 3600) / choice->step_seconds));
    CHECK_FALSE(interval.due(500 + choice->steps - 1));
    CHECK(interval.due(500 + choice->steps));
  }
}

TEST_CASE("save interval: the rate of failures is learned over all jobs, and a day is assumed before the first") {
  CHECK(learned_mtbf(600, 0) == 87000);
  CHECK(learned_mtbf(600, 1) == 600);
  CHECK(learned_mtbf(600, 4) == 150);
  SaveInterval none({.last_step = 1000000}), some({.failures = 3, .trained_seconds = 890, .last_step = 1000000});
  train_in_seconds(none, 1, 11, 1);
  train_in_seconds(some, 1, 11, 1);
  CHECK(none.take_choice()->mtbf == Approx(86400 + 11 + 1));
  const std::optional<SaveInterval::Choice> choice = some.take_choice();
  REQUIRE(choice);
  CHECK(choice->mtbf == Approx((890 + 11 + 1) / 3.0));
  CHECK(choice->failures == 3);
}

/// Parameters of a simulated run, in seconds: as measured of a small run, and of a large one.
struct SimulatedRun {
  double step, stall, slowdown, write, downtime, mtbf;
  int64_t steps;
};

/// Wall time of a run whose ranks die at exponentially distributed times, with a save after every `every` steps, or with SaveInterval. A checkpoint is
/// valid once it has been written; steps meanwhile take longer. Step times vary by a few percent.
double simulated_seconds(const SimulatedRun& run, std::optional<int64_t> every, uint64_t seed, std::vector<int64_t>* intervals = nullptr) {
  std::mt19937_64 random(seed), noise(seed + 1);
  std::exponential_distribution<double> until_failure(1 / run.mtbf);
  std::uniform_real_distribution<double> varies(0.97, 1.03);
  double now = 0, trained = 0;
  int64_t valid = 0, failures = 0;
  double cost = 0, speed = 0;
  while (valid < run.steps) {
    const double death = now + until_failure(random), begin = now;
    SaveInterval automatic(
        {.failures = failures, .trained_seconds = trained, .step = valid, .last_step = run.steps, .save_seconds = cost, .step_seconds = speed});
    int64_t saving = 0;  // step of the checkpoint that is being written
    double written = 0;  // when it will be
    for (int64_t step = valid + 1; step <= run.steps && now < death; ++step) {
      const double seconds = run.step * varies(noise) * (saving > 0 ? 1 + run.slowdown : 1);
      if (saving > 0 && now + seconds >= written && written < death) {
        valid = std::exchange(saving, 0);
        automatic.written(run.write);
      }
      now += seconds;
      automatic.add_step(seconds);
      if (const auto choice = automatic.take_choice()) {
        cost = choice->save_seconds, speed = choice->step_seconds;
        if (intervals != nullptr) intervals->push_back(choice->steps);
      }
      const bool last = step == run.steps, due = every ? step % *every == 0 : automatic.due(step);
      if (!due && !last) continue;
      if (saving > 0 && written < death) valid = saving;
      const double wait = (saving > 0 ? std::max(0.0, written - now) : 0) + run.stall;
      now += wait;
      automatic.saved(step, wait);
      saving = step;
      written = now + run.write;
      if (last && written < death) now = written, valid = step;
    }
    if (valid >= run.steps) break;
    trained += std::min(now, death) - begin;
    now = death + run.downtime;
    ++failures;
  }
  return now;
}

TEST_CASE("save interval: in simulated runs auto loses at most a tenth more time than the best interval of a sweep") {
  // A small run on one host with a synchronous save on a slow disk; 16,384 GPUs with asynchronous ones; and one that fails every few minutes.
  const SimulatedRun run = GENERATE(SimulatedRun{0.05, 0.3, 0, 0, 2, 8, 6000}, SimulatedRun{10, 3, 0.02, 60, 400, 11124, 60000},
                                    SimulatedRun{1, 2, 0.05, 8, 30, 240, 20000});
  CAPTURE(run.step, run.stall, run.mtbf);
  constexpr int kSeeds = 8;
  const auto mean_seconds = [&](std::optional<int64_t> every) {
    double sum = 0;
    for (int seed = 1; seed <= kSeeds; ++seed) sum += simulated_seconds(run, every, static_cast<uint64_t>(100 * seed));
    return sum / kSeeds;
  };
  double best = HUGE_VAL;
  int64_t best_every = 0;
  const double daly = daly_interval(run.stall, run.mtbf) / run.step;
  for (double factor = 0.15; factor < 7; factor *= 1.25) {
    const int64_t every = std::max<int64_t>(1, std::llround(daly * factor));
    if (const double seconds = mean_seconds(every); seconds < best) best = seconds, best_every = every;
  }
  const double automatic = mean_seconds(std::nullopt), useful = run.step * static_cast<double>(run.steps);
  std::vector<int64_t> intervals;
  simulated_seconds(run, std::nullopt, 100, &intervals);
  REQUIRE(!intervals.empty());
  std::ranges::nth_element(intervals, intervals.begin() + static_cast<ptrdiff_t>(intervals.size() / 2));
  CAPTURE(best, best_every, automatic, useful, intervals[intervals.size() / 2]);
  CHECK(automatic <= best * 1.05);  // of the whole time
  CHECK(automatic - useful <=
        (best - useful) * 1.10);  // of the time that failures and saves cost, the first failure included, of which nothing was known
}

}  // namespace

TEST_CASE("save interval: exactly the last ten saves and the last hundred steps count") {
  const auto choice_after = [](int saves, const std::vector<std::pair<int, double>>& steps_between, double first_extra) {
    SaveInterval interval({.mtbf = 1e6, .last_step = 1'000'000});
    for (int i = 0; i < 3; ++i) interval.add_step(50);  // the first steps do not count
    int64_t step = 3;
    for (const auto& [count, seconds] : steps_between)
      for (int i = 0; i < count; ++i, ++step) interval.add_step(seconds);
    std::optional<SaveInterval::Choice> choice;
    for (int save = 1; save <= saves; ++save) {
      interval.saved(++step, save);
      interval.written(save);
      const double mean = steps_between.back().second;
      interval.add_step(mean + (save <= 2 ? first_extra : 0));
      choice = interval.take_choice();
    }
    return *choice;
  };
  // Stalls of 1, 2, ..., 12 s, of which the last ten count.
  CHECK(choice_after(12, {{100, 2}}, 0).save_seconds == Approx(7.5));
  // While the first two were written a step took 4 s more each: part of the cost until eleven saves follow.
  CHECK(choice_after(3, {{100, 2}}, 4).save_seconds == Approx((1 + 2 + 3) / 3.0 + 8 / 3.0));
  CHECK(choice_after(11, {{100, 2}}, 4).save_seconds == Approx(6.5 + 0.4));
  CHECK(choice_after(12, {{100, 2}}, 4).save_seconds == Approx(7.5));
  // The last hundred of 150 steps count: fifty of each kind.
  CHECK(choice_after(1, {{100, 1}, {50, 3}}, -1).step_seconds == Approx(2));
}

}  // namespace trireme
