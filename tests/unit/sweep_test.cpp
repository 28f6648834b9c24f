// The pure parts of a sweep: its file, its points, halving, standings, the range test and the shell script.
#include <filesystem>
#include <set>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/scratch.h"
#include "trainer/config/write.h"
#include "trainer/loop/learning_rate.h"
#include "trainer/sweep/halving.h"
#include "trainer/sweep/page.h"
#include "trainer/sweep/points.h"
#include "trainer/sweep/range_test.h"
#include "trainer/sweep/results.h"
#include "trainer/sweep/runner.h"
#include "trainer/sweep/slurm_script.h"
#include "trainer/sweep/standings.h"
#include "trainer/sweep/state.h"

using namespace trireme;
using Catch::Matchers::Contains;

namespace {

sweep::SweepFile sweep_file(const std::string& rest) { return sweep::parse_sweep("base: run.yaml\n" + rest, "dir/my.yaml"); }

std::vector<std::string> point_labels(const sweep::SweepFile& file) {
  std::vector<std::string> all;
  for (const sweep::Point& point : sweep::points_of(file)) all.push_back(sweep::label_of(point));
  return all;
}

/// Points with these numbers of steps.
std::vector<sweep::PointRun> runs_of(const std::vector<int64_t>& steps) {
  std::vector<sweep::PointRun> runs;
  for (size_t i = 0; i < steps.size(); ++i) {
    sweep::PointRun run{
        .point = {i, {{"training.optimizer.learning_rate", std::to_string(i + 1)}}}, .name = concat("p", i), .config = {}, .steps = steps[i]};
    runs.push_back(run);
  }
  return runs;
}

sweep::PointHistory trained_to(int64_t step) { return {.starts = 1, .ends = 1, .done_until = step, .failure = {}, .seconds = 1, .has_run = true}; }

std::string states_text(const std::vector<sweep::Standing>& standings) {
  std::string text;
  for (const sweep::Standing& one : standings) text += concat(text.empty() ? "" : " ", sweep::name_of(one.state), ":", one.target);
  return text;
}

report::RunRecord run_with_losses(const std::vector<double>& losses) {
  report::RunRecord run;
  for (size_t i = 0; i < losses.size(); ++i) {
    run.steps.step.push_back(static_cast<int64_t>(i) + 1);
    run.steps.time.push_back(0);
    run.steps.elapsed_seconds.push_back(0);
    for (auto& column : run.steps.figures) column.push_back(losses[i]);
  }
  return run;
}

}  // namespace

TEST_CASE("sweep: points are all combinations of the axes, the first axis varying most slowly") {
  const sweep::SweepFile file = sweep_file("axes: {training.optimizer.learning_rate: [1e-3, 1e-2], model.layers: [2, 4, 6]}");
  CHECK(point_labels(file) == std::vector<std::string>{"learning_rate=1e-3, layers=2", "learning_rate=1e-3, layers=4", "learning_rate=1e-3, layers=6",
                                                       "learning_rate=1e-2, layers=2", "learning_rate=1e-2, layers=4",
                                                       "learning_rate=1e-2, layers=6"});
  CHECK(file.base == "dir/run.yaml");
  CHECK(file.directory == "runs/my");
}

TEST_CASE("sweep: grids have exact ends, round values and integers for integer keys") {
  CHECK(point_labels(sweep_file("axes: {training.optimizer.learning_rate: {grid: logspace, from: 0.001, to: 0.1, count: 5}}")) ==
        std::vector<std::string>{"learning_rate=0.001", "learning_rate=0.00316228", "learning_rate=0.01", "learning_rate=0.0316228",
                                 "learning_rate=0.1"});
  CHECK(point_labels(sweep_file("axes: {model.dropout: {grid: linspace, from: 0, to: 0.3, count: 4}}")) ==
        std::vector<std::string>{"dropout=0", "dropout=0.1", "dropout=0.2", "dropout=0.3"});
  CHECK(point_labels(sweep_file("axes: {model.layers: {grid: logspace, from: 2, to: 16, count: 4}}")) ==
        std::vector<std::string>{"layers=2", "layers=4", "layers=8", "layers=16"});
}

TEST_CASE("sweep: axes of zip advance together") {
  const sweep::SweepFile file =
      sweep_file("axes: {model.hidden_size: [32, 64], model.layers: [1, 2], model.ffn_size: [96, 192]}\nzip: [model.hidden_size, model.ffn_size]");
  CHECK(point_labels(file) == std::vector<std::string>{"hidden_size=32, layers=1, ffn_size=96", "hidden_size=32, layers=2, ffn_size=96",
                                                       "hidden_size=64, layers=1, ffn_size=192", "hidden_size=64, layers=2, ffn_size=192"});
}

TEST_CASE("sweep: of more points than the table has rows those left out are counted, and the failed ones are shown") {
  const sweep::SweepFile file = sweep_file("axes: {model.layers: [1, 2, 3, 4, 5, 6, 7]}");
  std::vector<sweep::PointRun> runs;
  for (const sweep::Point& point : points_of(file)) runs.push_back({point, "", {}});
  sweep::Results results{&file, {}};
  for (const sweep::PointRun& run : runs) {
    sweep::ResultRow row{&run, {}, {}};
    const bool failed = run.point.index >= 5;
    row.standing.state = failed ? sweep::PointState::kFailed : sweep::PointState::kWaiting;
    if (failed) row.history.failure = sweep::Failure{70, "it failed"};
    results.rows.push_back(row);
  }
  const std::string text = results_table(results, 2);
  CHECK_THAT(text, Catch::Matchers::Contains("and 3 more: results.csv has all"));
  CHECK_THAT(text, Catch::Matchers::Contains("point 5: exit code 70: it failed"));
  CHECK_THAT(text, Catch::Matchers::Contains("point 6: exit code 70: it failed"));
}

TEST_CASE("sweep: draws are a function of seed, index and key, and more samples only add points") {
  const std::string axes =
      "seed: 7\naxes: {training.optimizer.learning_rate: {random: log_uniform, from: 1e-4, to: 1e-1}, model.layers: {random: uniform, from: 1, to: "
      "4}, "
      "run.seed: [1, 2]}\n";
  const std::vector<std::string> three = point_labels(sweep_file(axes + "samples: 3")), six = point_labels(sweep_file(axes + "samples: 6"));
  REQUIRE(three.size() == 6);
  REQUIRE(six.size() == 12);
  CHECK(std::equal(three.begin(), three.end(), six.begin()));
  CHECK(std::set<std::string>(six.begin(), six.end()).size() == 12);
  // Both seeds have the same draws.
  CHECK(three[0].substr(0, three[0].find(", seed")) == three[1].substr(0, three[1].find(", seed")));
  // The draw by hand: philox with this key, then exp(uniform).
  const sweep::SweepFile file = sweep_file(axes + "samples: 3");
  CHECK(sweep::draw(file.axes[0], 7, 0).value == sweep::draw(file.axes[0], 7, 0).value);
  CHECK(sweep::draw(file.axes[0], 7, 0).value != sweep::draw(file.axes[0], 8, 0).value);
  CHECK(sweep::draw(file.axes[0], 7, 0).value != sweep::draw(file.axes[0], 7, 1).value);
}

TEST_CASE("sweep: draws cover their range evenly, on a logarithmic axis evenly in the logarithm") {
  const sweep::SweepFile file = sweep_file(
      "samples: 2\naxes: {training.optimizer.learning_rate: {random: log_uniform, from: 1e-4, to: 1}, model.dropout: {random: uniform, from: 0, to: "
      "0.4}, "
      "model.layers: {random: uniform, from: 1, to: 4}, model.architecture: {random: choice, values: [llama, gpt2]}}");
  constexpr int kDraws = 4000;
  std::map<std::string, int> layers, architectures;
  int low_rate = 0, low_dropout = 0;
  for (uint64_t i = 0; i < kDraws; ++i) {
    const double rate = std::stod(sweep::draw(file.axes[0], 1, i).value), dropout = std::stod(sweep::draw(file.axes[1], 1, i).value);
    REQUIRE((rate >= 1e-4 && rate <= 1 && dropout >= 0 && dropout <= 0.4));
    low_rate += rate < 1e-2 ? 1 : 0;
    low_dropout += dropout < 0.2 ? 1 : 0;
    ++layers[sweep::draw(file.axes[2], 1, i).value];
    ++architectures[sweep::draw(file.axes[3], 1, i).value];
  }
  constexpr int kSlack = 160;  // five standard deviations
  CHECK(std::abs(low_rate - kDraws / 2) < kSlack);
  CHECK(std::abs(low_dropout - kDraws / 2) < kSlack);
  REQUIRE(layers.size() == 4);
  for (const auto& [value, count] : layers) CHECK(std::abs(count - kDraws / 4) < kSlack);
  REQUIRE(architectures.size() == 2);
  for (const auto& [value, count] : architectures) CHECK(std::abs(count - kDraws / 2) < kSlack);
}

TEST_CASE("sweep: draws that repeat an earlier one are left out, and too few different ones are refused") {
  const std::string axes = "axes: {model.layers: {random: uniform, from: 1, to: 3}}\n";
  CHECK(point_labels(sweep_file(axes + "samples: 3")).size() == 3);
  CHECK_THROWS_WITH(sweep::points_of(sweep_file(axes + "samples: 4")),
                    Contains("samples=4: the random axes have only 3 different draws; allowed integer from 1 to 3"));
}

TEST_CASE("sweep: names of points are safe for a file system, whatever the values are") {
  const sweep::Point point{7, {{"data.train", "[\"a/b\\x0a'\\\"; rm -rf $HOME\"]"}, {"training.optimizer.learning_rate", "0.001"}}};
  const std::string name = sweep::name_of(point);
  CHECK(name.starts_with("007-train=__a_b_x0a"));
  CHECK(name.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.=,+-_") == std::string::npos);
  const sweep::Point large{12, {{"data.tokenizer", std::string(500, 'x')}}};
  CHECK(sweep::name_of(large).size() == 100);
  CHECK(sweep::name_of({1234, {}}).starts_with("1234-"));
}

TEST_CASE("sweep: keys with equal last parts keep their whole paths in labels") {
  const sweep::Point point{0, {{"training.evaluate.every", "2"}, {"checkpoint.every", "4"}, {"run.seed", "1"}}};
  CHECK(sweep::label_of(point) == "training.evaluate.every=2, checkpoint.every=4, seed=1");
}

TEST_CASE("sweep: what is wrong with a file is reported at its position") {
  struct Bad {
    const char* rest;
    const char* message;
  };
  const std::vector<Bad> files{
      {"axes: {training.optimizer.learning_rat: [1]}",
       "dir/my.yaml:2:8 axes.training.optimizer.learning_rat: unknown key of the configuration; did you mean training.optimizer.learning_rate?"},
      {"axes: {optimizer.learning_rate: [1]}", "did you mean training.optimizer.learning_rate?"},
      {"axes: {training.optimizer: [1]}", "axes.training.optimizer: a section of the configuration"},
      {"axes: {run.directory: [a, b]}", "axes.run.directory: each point has its own"},
      {"axes: {run.name: [a, b]}", "axes.run.name: each point has its own"},
      {"axes: {}", "axes: no axis is given; allowed at least one axis, or range_test"},
      {"seed: 1", "axes: no axis is given"},
      {"axes: {model.layers: []}", "axes.model.layers: an empty list: the sweep would have no point"},
      {"axes: {model.layers: 4}", "axes.model.layers=4: not the values of an axis; allowed a list of values"},
      {"axes: {model.layers: [2, 4, 2]}", "dir/my.yaml:2:29 axes.model.layers=2: the value is given twice"},
      {"axes: {model.layers: [{a: 1}]}", "not a value; allowed a plain value or a list"},
      {"axes: {model.dropout: {grid: linspace, from: 0, to: 1, count: 0}}",
       "axes.model.dropout.count=0: out of range; allowed integer from 2 to 10000"},
      {"axes: {model.dropout: {grid: linspace, from: 0, to: 1, count: 1}}", "axes.model.dropout.count=1: a grid has two ends"},
      {"axes: {model.dropout: {grid: linspace, from: 0, to: 1, count: 2.5}}", "axes.model.dropout.count=2.5: out of range"},
      {"axes: {model.dropout: {grid: linspace, from: 1, to: 1, count: 2}}", "axes.model.dropout.to=1: not above from=1"},
      {"axes: {model.dropout: {grid: logspace, from: 0, to: 1, count: 2}}", "axes.model.dropout.from=0: has no logarithm; allowed number above 0"},
      {"axes: {model.dropout: {grid: logspace, from: -1, to: 1, count: 2}}", "axes.model.dropout.from=-1: has no logarithm"},
      {"axes: {model.dropout: {grid: cubic, from: 0, to: 1, count: 2}}",
       "axes.model.dropout.grid=cubic: unknown kind of grid; allowed linspace | logspace"},
      {"axes: {model.dropout: {grid: linspace, from: 0, count: 2}}", "axes.model.dropout.to: required key is missing"},
      {"axes: {model.dropout: {grid: linspace, from: 0, to: 1, counts: 2}}",
       "axes.model.dropout.counts=2: unknown key of an axis; did you mean count?"},
      {"axes: {model.dropout: {grid: linspace, from: x, to: 1, count: 2}}", "axes.model.dropout.from=x: not a decimal number"},
      {"axes: {model.dropout: {from: 0, to: 1}}", "neither grid nor random is given"},
      {"axes: {model.dropout: {grid: linspace, random: uniform, from: 0, to: 1}}", "grid and random are both given"},
      {"axes: {model.layers: {grid: linspace, from: 1, to: 2, count: 4}}", "axes.model.layers.count=4: two values are rounded to 1"},
      {"axes: {model.architecture: {grid: linspace, from: 1, to: 2, count: 4}}", "axes.model.architecture: the key does not take numbers"},
      {"axes: {model.dropout: {random: normal, from: 0, to: 1}}\nsamples: 2", "unknown distribution; allowed uniform | log_uniform | choice"},
      {"axes: {model.dropout: {random: log_uniform, from: 0, to: 1}}\nsamples: 2", "axes.model.dropout.from=0: has no logarithm"},
      {"axes: {model.dropout: {random: choice}}\nsamples: 2", "axes.model.dropout.values: required key is missing"},
      {"axes: {model.dropout: {random: uniform, from: 0, to: 1}}", "samples: required key is missing, because an axis is random"},
      {"axes: {model.layers: [1, 2]}\nsamples: 2", "samples: has no effect: no axis is random"},
      {"axes: {model.layers: [1, 2]}\nsamples: 0", "samples=0: out of range"},
      {"axes: {model.layers: [1, 2]}\nset: {model.layers: 4}", "set.model.layers=4: also an axis"},
      {"axes: {model.layers: [1, 2]}\nset: {model.layer: 4}", "set.model.layer: unknown key of the configuration; did you mean model.layers?"},
      {"axes: {model.layers: [1, 2]}\nzip: [model.heads]", "zip=model.heads: not a key of axes"},
      {"axes: {model.layers: [1, 2], model.heads: [1]}\nzip: [model.layers, model.heads]", "zip=model.heads: 1 values, but model.layers has 2"},
      {"axes: {model.layers: [1, 2]}\nzip: [model.layers, model.layers]", "zip=model.layers: given twice"},
      {"axis: {model.layers: [1, 2]}", "axis: unknown key; did you mean axes?"},
      {"axes: {model.layers: [1, 2]}\nobjective: {metric: accuracy}", "objective.metric=accuracy: not one of the choices"},
      {"axes: {model.layers: [1, 2]}\nobjective: {metric: tokens_per_second}",
       "objective.goal=minimise: tokens_per_second is better if it is larger"},
      {"axes: {model.layers: [1, 2]}\nobjective: {average: 4}", "objective.average=4: an evaluation is a mean over many batches already"},
      {"axes: {model.layers: [1, 2]}\nhalving: {eta: 2}", "halving.eta: has no effect: halving.first_steps is not set"},
      {"axes: {model.layers: [1, 2]}\nhalving: {first_steps: 2, eta: 1}", "halving.eta=1: out of range"},
      {"axes: {model.layers: [1, 2]}\nhalving: {first_steps: 2}\nwhere: {place: slurm}", "where.place=slurm: the tasks of an array do not wait"},
      {"axes: {model.layers: [1, 2]}\nwhere: {at_once: 0}", "where.at_once=0: out of range"},
      {"axes: {model.layers: [1, 2]}\nbudget: {points: 0}", "budget.points=0: out of range"},
      {"axes: {model.layers: [1, 2]}\nstop_after_failures: 0", "stop_after_failures=0: out of range"},
      {"axes: {model.layers: [1, 2]}\nrange_test: {from: 1, to: 2, steps: 20}", "axes: a range test is one run and has no axes"},
      {"range_test: {from: 1, steps: 20}", "range_test: from, to and steps are not all given"},
      {"range_test: {from: 1, to: 1, steps: 20}", "range_test.to: not above from=1"},
      {"range_test: {from: 1, to: 2, steps: 2}", "range_test.steps=2: out of range"},
      {"axes: {model.layers: [1, 2]}\ndirectory: \"a\\nb\"", "directory: control character 10"},
  };
  for (const Bad& bad : files) {
    INFO(bad.rest);
    CHECK_THROWS_WITH(sweep_file(bad.rest), Contains(bad.message));
  }
  CHECK_THROWS_WITH(sweep::parse_sweep("axes: {model.layers: [1, 2]}", "my.yaml"), Contains("base: required key is missing"));
  CHECK_THROWS_WITH(sweep::parse_sweep("[1, 2]", "my.yaml"), Contains("a sweep file is a mapping of sections"));
}

TEST_CASE("sweep: all violations of a file are reported at once, in its order") {
  try {
    sweep_file("axes:\n  model.layer: [1]\n  model.heads: []\nbudget: {points: 0}\n");
    FAIL("no error");
  } catch (const ConfigError& error) {
    const std::string text = error.what();
    CHECK(text.find(":3:3 axes.model.layer") < text.find(":4:16 axes.model.heads"));
    CHECK(text.find(":4:16 axes.model.heads") < text.find(":5:18 budget.points=0"));
    CHECK(text.find(":5:18 budget.points=0") != std::string::npos);
  }
}

TEST_CASE("sweep: too many combinations are refused before they are listed") {
  std::string list = "0";
  for (int i = 1; i < 1000; ++i) list += concat(", ", i);
  const std::string axes = "axes: {run.seed: [" + list + "], model.layers: [" + list + "], model.heads: [" + list + "]}";
  CHECK_THROWS_WITH(sweep::points_of(sweep_file(axes)), Contains("axes: 1000000000 points; allowed at most 10000"));
}

TEST_CASE("sweep: rungs of halving multiply the steps by eta and end at the complete run") {
  CHECK(sweep::rungs_of({.first_steps = 10, .eta = 3}, 100) == std::vector<int64_t>{10, 30, 90, 100});
  CHECK(sweep::rungs_of({.first_steps = 25, .eta = 2}, 100) == std::vector<int64_t>{25, 50, 100});
  CHECK(sweep::rungs_of({.first_steps = 100, .eta = 2}, 100) == std::vector<int64_t>{100});
  CHECK(sweep::rungs_of({.first_steps = {}, .eta = 3}, 100) == std::vector<int64_t>{100});
  CHECK(sweep::rungs_of({.first_steps = 1000000000000, .eta = 1000}, INT64_MAX).size() < 10);
}

TEST_CASE("sweep: halving promotes the best, rounded up, ties by index and points without a score last") {
  const SweepObjective objective;
  const auto score = [](double value) { return sweep::Score{value, 1}; };
  CHECK(sweep::promoted({{0, score(3)}, {1, score(1)}, {2, {}}, {3, score(2)}, {4, score(1)}}, 2, objective) == std::vector<size_t>{1, 3, 4});
  CHECK(sweep::promoted({{0, score(1)}, {1, score(1)}, {2, score(1)}}, 3, objective) == std::vector<size_t>{0});
  CHECK(sweep::promoted({{4, score(5)}}, 3, objective) == std::vector<size_t>{4});
  SweepObjective speed;
  speed.goal = SweepGoal::kMaximise;
  CHECK(sweep::promoted({{0, score(3)}, {1, score(9)}, {2, {}}}, 3, speed) == std::vector<size_t>{1});
}

TEST_CASE("sweep: standings follow from what the jobs have left") {
  SweepConfig config;
  config.halving = {.first_steps = 10, .eta = 2};
  const std::vector<sweep::PointRun> runs = runs_of({40, 40, 40, 40, 10});
  std::vector<sweep::PointHistory> histories(5);
  const auto score_at = [](size_t index, int64_t) { return std::optional<sweep::Score>({static_cast<double>(index), 1}); };
  CHECK(states_text(sweep::standings_of(config, runs, histories, score_at)) == "waiting:10 waiting:10 waiting:10 waiting:10 waiting:10");
  histories[0] = trained_to(10);
  histories[1] = {.starts = 1, .ends = 1, .done_until = 0, .failure = {}, .seconds = 0, .has_run = true};
  histories[4] = trained_to(10);
  CHECK(states_text(sweep::standings_of(config, runs, histories, score_at)) == "settled:10 begun:10 waiting:10 waiting:10 done:10");
  histories[1] = trained_to(10);
  histories[2].failure = sweep::Failure{70, "broken"};
  histories[3] = trained_to(10);
  // Four are left, of which the best two train on; a point that was short is done, not dropped.
  CHECK(states_text(sweep::standings_of(config, runs, histories, score_at)) == "begun:20 begun:20 failed:10 dropped:10 done:10");
  histories[0] = trained_to(20);
  histories[1] = trained_to(20);
  CHECK(states_text(sweep::standings_of(config, runs, histories, score_at)) == "begun:40 dropped:20 failed:10 dropped:10 done:10");
  histories[0] = trained_to(40);
  const auto last = sweep::standings_of(config, runs, histories, score_at);
  CHECK(states_text(last) == "done:40 dropped:20 failed:10 dropped:10 done:10");
  CHECK(last[0].scored_at == 40);
  CHECK(last[1].scored_at == 20);
  CHECK(sweep::planned_steps(config, runs) == 5 * 10 + 3 * 10 + 2 * 20);
  config.budget.points = 2;
  CHECK(states_text(sweep::standings_of(config, runs, histories, score_at)) == "done:40 dropped:10 left out:40 left out:40 left out:10");
}

TEST_CASE("sweep: the objective is the last or the best value up to a step") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  report::RunRecord run = run_with_losses({5, 2, 4, 3, nan});
  run.evaluations = {{2, 2.5, {}, 0}, {4, 2.75, {}, 0}};
  SweepObjective objective{.metric = SweepMetric::kLoss};
  CHECK(sweep::score_of(run, objective, 4)->value == 3);
  CHECK(sweep::score_of(run, objective, 3)->value == 4);
  CHECK_FALSE(sweep::score_of(run, objective, 5));
  CHECK_FALSE(sweep::score_of(run, objective, 0));
  objective.average = 2;
  CHECK(sweep::score_of(run, objective, 4)->value == 3.5);
  CHECK(sweep::score_of(run, objective, 1)->value == 5);
  objective.take = SweepTake::kBest;
  CHECK(sweep::score_of(run, objective, 5)->value == 3);
  CHECK(sweep::score_of(run, objective, 5)->step == 3);
  objective = {};
  CHECK(sweep::score_of(run, objective, 4)->value == 2.75);
  CHECK(sweep::score_of(run, objective, 3)->value == 2.5);
  objective.take = SweepTake::kBest;
  CHECK(sweep::score_of(run, objective, 4)->value == 2.5);
  CHECK(sweep::score_of(run, objective, 4)->step == 2);
}

TEST_CASE("sweep: a range test suggests the rate at which the smoothed loss falls fastest") {
  constexpr int kSteps = 500;
  const SweepRangeTest test{.from = 1e-5, .to = 1, .steps = kSteps};
  std::vector<double> losses;  // falls around step 250, rises from step 400 on
  for (int step = 1; step <= kSteps; ++step) {
    const double x = static_cast<double>(step);
    losses.push_back(6 - 3 / (1 + std::exp(-(x - 250) / 20)) + (x > 400 ? (x - 400) * (x - 400) / 100 : 0) + 0.05 * std::sin(x));
  }
  const sweep::RangeTestResult result = sweep::range_test_result(run_with_losses(losses), test);
  REQUIRE(result.suggested);
  const double centre = 1e-5 * std::pow(1e5, 250.0 / kSteps);  // the average lags behind by about 20 steps, a factor of 1.6
  CHECK(*result.suggested > centre / 1.2);
  CHECK(*result.suggested < centre * 2);
  CHECK(*result.lowest > *result.suggested);
  CHECK(*result.lowest < 1e-5 * std::pow(1e5, 440.0 / kSteps));
  CHECK(result.rate.back() == Approx(1));
  CHECK_THAT(result.text, Contains("there the smoothed loss falls fastest"));

  std::vector<double> rising;
  for (int step = 0; step < kSteps; ++step) rising.push_back(1 + step * 0.001);
  CHECK_FALSE(sweep::range_test_result(run_with_losses(rising), test).suggested);
  losses[300] = std::numeric_limits<double>::quiet_NaN();  // what follows does not count
  CHECK(*sweep::range_test_result(run_with_losses(losses), test).suggested < 1e-5 * std::pow(1e5, 300.0 / kSteps));
}

TEST_CASE("sweep: a range test is a run whose learning rate grows by the same factor in each step") {
  const sweep::SweepFile file = sweep_file("range_test: {from: 1e-5, to: 1, steps: 500}");
  CHECK(sweep::points_of(file).size() == 1);
  CHECK(sweep::label_of(sweep::points_of(file)[0]) == "range test");
  ScheduleConfig schedule{.name = LearningRateSchedule::kExponential, .warmup_steps = 0, .final_learning_rate = 1, .decay_steps = {}};
  OptimizerConfig optimizer;
  optimizer.learning_rate = 1e-5;
  for (int64_t step = 1; step <= 500; step += 37)
    CHECK(learning_rate(schedule, optimizer, 8, step, 500) == Approx(1e-5 * std::pow(1e5, static_cast<double>(step) / 500)).epsilon(1e-12));
  CHECK(learning_rate(schedule, optimizer, 8, 500, 500) == Approx(1).epsilon(1e-12));
  schedule.final_learning_rate = 1e-7;
  schedule.warmup_steps = 100;
  CHECK(learning_rate(schedule, optimizer, 8, 50, 300) == Approx(5e-6).epsilon(1e-12));
  CHECK(learning_rate(schedule, optimizer, 8, 200, 300) == Approx(1e-6).epsilon(1e-12));
}

TEST_CASE("sweep: cores are shared among the points that run at a time") {
  const std::vector<sweep::PointRun> single = runs_of({1, 1, 1, 1});
  std::vector<sweep::PointRun> parallel = single;
  parallel[1].ranks = 4;
  const LaunchEnvironment plain;
  CHECK(sweep::slots_of({}, single, 8, false, plain).at_once == 4);  // there are no more points
  CHECK(sweep::slots_of({}, single, 8, false, plain).threads(1) == 2);
  CHECK(sweep::slots_of({}, parallel, 8, false, plain).at_once == 2);
  CHECK(sweep::slots_of({}, parallel, 8, false, plain).threads(4) == 1);
  CHECK(sweep::slots_of({}, single, 8, true, plain).at_once == 1);
  CHECK(sweep::slots_of({.place = SweepPlace::kLocal, .at_once = 2, .cores = 3}, single, 8, false, plain).threads(1) == 3);
  LaunchEnvironment chosen;
  chosen.omp_threads = 5;
  CHECK_FALSE(sweep::slots_of({}, single, 8, false, chosen).threads(1));
  CHECK(sweep::slots_of({.place = SweepPlace::kLocal, .at_once = 2, .cores = 3}, single, 8, false, chosen).threads(1) == 3);
}

TEST_CASE("sweep: the script of an array lists the open points and quotes the path of the file") {
  sweep::SweepFile file = sweep_file("axes: {model.layers: [1, 2]}\nwhere: {place: slurm}");
  file.path = "my $(touch hacked) 'sweep'.yaml";
  std::vector<sweep::PointRun> runs = runs_of({1, 1, 1, 1, 1, 1, 1});
  for (const auto& [point, ranks] : {std::pair<size_t, int>{1, 4}, {2, 6}, {5, 3}}) runs[point].ranks = ranks;
  sweep::Results results{&file, {}};
  for (const sweep::PointRun& run : runs) results.rows.push_back({&run, {}, {}, 0});
  results.rows[3].standing.state = sweep::PointState::kDone;
  results.rows[4].standing.state = sweep::PointState::kFailed;
  const std::string script = sweep::array_script(results, 3, "/opt/bin/trireme");
  CHECK_THAT(script, Contains("#SBATCH --array=0-2,5-6%3\n") && Contains("\n#SBATCH --cpus-per-task=6\n"));
  CHECK_THAT(script, Contains("'/opt/bin/trireme' sweep 'my $(touch hacked) '\\''sweep'\\''.yaml' --point \"$SLURM_ARRAY_TASK_ID\" &\n"));
  for (sweep::ResultRow& row : results.rows) row.standing.state = sweep::PointState::kDone;
  CHECK(sweep::array_script(results, 3, "/opt/bin/trireme").empty());
}

TEST_CASE("sweep: the best point comes first, with halving among those that trained longest") {
  sweep::SweepFile file = sweep_file("axes: {training.optimizer.learning_rate: [1, 2, 3, 4]}");
  const std::vector<sweep::PointRun> runs = runs_of({40, 40, 40, 40});
  std::vector<sweep::Standing> standings(4);
  standings[0] = {sweep::PointState::kDropped, 10, sweep::Score{1, 10}, 10};
  standings[1] = {sweep::PointState::kDone, 40, sweep::Score{3, 40}, 40};
  standings[2] = {sweep::PointState::kDone, 40, sweep::Score{2, 40}, 40};
  standings[3].state = sweep::PointState::kFailed;
  std::vector<sweep::PointHistory> histories(4);
  histories[3].failure = sweep::Failure{65, "x\ny, \"z\""};
  const auto order = [&] {
    std::string text;
    for (const sweep::ResultRow& row : sweep::results_of(file, runs, standings, histories).rows) text += std::to_string(row.run->point.index);
    return text;
  };
  CHECK(order() == "0213");
  file.config.halving.first_steps = 10;
  CHECK(order() == "2103");
  standings[2].score = sweep::Score{2, 30};  // the best of its evaluations, not the last
  const sweep::Results results = sweep::results_of(file, runs, standings, histories);
  CHECK_THAT(sweep::best_yaml(results), Contains("# Point 2 of a sweep: ") && Contains(" 2 after step 30.\n"));
  CHECK(results.best()->run->point.index == 2);
  CHECK(results.failed() == 1);
  const std::string csv = sweep::results_csv(results);
  CHECK_THAT(csv,
             Contains("point,name,state,\"training.optimizer.learning_rate\",\"validation_loss\",objective_step,steps,seconds,starts,failure\n"));
  CHECK_THAT(csv, Contains("2,\"p2\",done,3,2,30,0,0,0,\n"));
  CHECK_THAT(csv, Contains("3,\"p3\",failed,4,,,0,0,0,\"x\ny, \"\"z\"\"\"\n"));
  const auto json = sweep::results_json(results);
  CHECK(json["best"] == 2);
  CHECK(json["points"][0]["objective"] == 2.0);
  CHECK(json["points"][3]["failure"]["code"] == 65);
}

TEST_CASE("sweep: the plot of an axis is logarithmic where its values are, and texts have none") {
  sweep::SweepFile file =
      sweep_file("axes: {training.optimizer.learning_rate: {grid: logspace, from: 1e-3, to: 1, count: 4}, model.architecture: [llama, gpt2]}");
  std::vector<sweep::PointRun> runs;
  for (const sweep::Point& point : sweep::points_of(file)) runs.push_back({.point = point, .name = "p", .config = {}, .steps = 4});
  std::vector<sweep::Standing> standings;
  for (size_t i = 0; i < runs.size(); ++i)
    standings.push_back({sweep::PointState::kDone, 4, sweep::Score{5.0 + static_cast<double>((i * 5) % 8), 4}, 4});
  const sweep::Results results = sweep::results_of(file, runs, standings, std::vector<sweep::PointHistory>(runs.size()));
  const auto plot = sweep::axis_plot(results, 0);
  REQUIRE(plot);
  CHECK(plot->x.log);
  CHECK(plot->x.label == "training.optimizer.learning_rate");
  REQUIRE(plot->curves.size() == 3);
  CHECK(plot->curves[0].y.size() == 4);  // the best of each value
  CHECK(plot->curves[1].y.size() == 8);
  CHECK(plot->curves[2].y == std::vector<double>{5});
  CHECK_FALSE(sweep::axis_plot(results, 1));
  std::vector<report::RunRecord> records(8, run_with_losses({3, 2, 1, 0.5}));
  const std::string page = sweep::page_html(results, records, "1.0 <b>");
  CHECK_THAT(page, Contains("<h2>Objective over each axis</h2>"));
  CHECK_THAT(page, Contains("gpt2</th><td>4</td>"));
  CHECK_THAT(page, Contains("version 1.0 &lt;b&gt;"));
  CHECK(sweep::losses_plot(results, records)->curves.size() == 8);
  // gpt2 has points 1, 3, 5 and 7, with 10, 12, 6 and 8: the mean is over those with a score.
  standings[3] = {.state = sweep::PointState::kFailed};
  std::vector<sweep::PointHistory> histories(runs.size());
  histories[3].failure = sweep::Failure{65, "no data"};
  const std::string failed = sweep::page_html(sweep::results_of(file, runs, standings, histories), records, "1.0");
  CHECK_THAT(failed, Contains("<th scope=\"row\">gpt2</th><td>4</td><td>6</td><td>8</td>"));
}

TEST_CASE("sweep: the examples in configs/sweeps are read, with base configurations that exist") {
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::in_checkout("configs/sweeps"))) {
    CAPTURE(entry.path().string());
    const sweep::SweepFile file = sweep::load_sweep(entry.path().string());
    CHECK_FALSE(sweep::points_of(file).empty());
    CHECK(std::filesystem::exists(file.base));
    ++files;
  }
  CHECK(files > 0);
}

TEST_CASE("sweep: the schema of a sweep file names its keys") {
  const auto schema = nlohmann::json::parse(sweep_schema());
  CHECK(schema["properties"]["halving"]["properties"]["eta"]["default"] == 3);
  CHECK(schema["properties"]["axes"]["additionalProperties"] == true);
  CHECK(schema["properties"]["where"]["additionalProperties"] == false);
}

TEST_CASE("sweep: the hours of all earlier jobs count, and not the time between them") {
  const test::Scratch scratch;
  const auto line = [](const char* event, const char* time) { return concat(R"({"event":")", event, R"(","time":"2026-11-23T)", time, "Z\"}\n"); };
  scratch.write("sweep.jsonl", line("start", "09:00:00.000") + line("mark", "09:30:00.000") + line("end", "10:00:00.000") +
                                   line("start", "12:00:00.000") + line("mark", "12:15:00.000") +  // killed
                                   line("start", "20:00:00.000") + line("end", "20:30:00.000"));
  CHECK(sweep::SweepClock(scratch / "").hours() == Approx(1.75).margin(1e-3));
  CHECK(sweep::SweepClock(scratch / "").hours() == Approx(1.75).margin(1e-3));  // after a job that was killed at once
}
