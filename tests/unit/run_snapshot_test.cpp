// What a run writes and prints, whole, with two or more of each event, and what its decisions say beyond their limits.
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <limits>
#include <utility>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/replaced.h"
#include "tests/support/reporter_output.h"
#include "tests/support/snapshot.h"
#include "tests/support/time_zone.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/memory_table.h"
#include "trainer/model/flops.h"
#include "trainer/run/anomaly_window.h"
#include "trainer/run/change.h"
#include "trainer/run/checkpoint_manager.h"
#include "trainer/run/console_sink.h"
#include "trainer/run/early_stopping.h"
#include "trainer/run/exchange_log.h"
#include "trainer/run/prometheus_figures.h"
#include "trainer/run/rank_results.h"
#include "trainer/run/rejected_steps.h"

namespace trireme::test {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kNotANumber = std::numeric_limits<double>::quiet_NaN();
constexpr double kEndless = std::numeric_limits<double>::infinity();

/// Two islands of six pipelines of two tensor ranks.
Config large_config() {
  Config config;
  config.run.name = "large";
  config.model.layers = 6;
  config.model.hidden_size = 64;
  config.model.heads = 4;
  config.training.steps = 2000;
  config.model = resolve(config).model;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 6;
  config.parallel.data = 3;
  config.parallel.islands = 2;
  config.parallel.zero_stage = 1;
  config.training.sequence_length = 16;
  config.training.global_batch_size = 24;
  config.training.precision = Arithmetic::kFp16;
  config.data.packing = Packing::kBestFit;
  config.data.balance = Balance::kCost;
  return config;
}

StepResult numbered_result(int64_t step) {
  StepResult result;
  const auto n = static_cast<double>(step);
  result.loss = 100 / n;
  result.grad_norm = 10 / n;
  result.learning_rate = 0.0123 / n;
  result.targets = 300 + step;
  result.loss_scale = int64_t{1} << (step % 20);
  result.padding = step;
  result.cost_imbalance = 1 / n;
  return result;
}

RankMemory numbered_memory(int64_t unit, size_t phase) {
  RankMemory memory;
  memory.peak_total = 0;
  for (size_t c = 0; c < kMemoryCategories; ++c) memory.peak_total += memory.peak[c] = unit * static_cast<int64_t>(c + 1);
  for (size_t p = 0; p < kMemoryPhases; ++p) {
    memory.phases[p].peak = memory.peak;
    memory.phases[p].peak_total = memory.peak_total - unit * static_cast<int64_t>((p + kMemoryPhases - phase) % kMemoryPhases);
  }
  return memory;
}

}  // namespace

TEST_CASE("snapshot: run: metrics, log and messages of a resumed run with two of each event") {
  ReportedRun run{.config = large_config(), .steps = 2000};
  run.environment = {{"version", "9.8.7"}, {"world_size", 72}, {"layout", {{"islands", 2}, {"pipeline", 6}}}};
  RunForecast& forecast = run.forecast.emplace();
  forecast.time.step_seconds = 0.5;
  forecast.time.step_low = 0.4;
  forecast.time.step_high = 0.7;
  forecast.time.mfu = 0.125;
  forecast.time.bubble = 0.0625;
  forecast.source = "a cluster file";
  forecast.peak_flops = 4e9;
  run.history.step = 40;
  run.history.tokens = 777;
  run.history.from_peers = true;
  // Four lines are of steps that are made again: three steps, and an event between them.
  run.metrics =
      "{\"step\":39,\"loss\":3.5,\"time\":\"2026-11-23T21:59:01.000Z\"}\n{\"step\":40,\"loss\":3.25,\"time\":\"2026-11-23T21:59:02.000Z\"}\n"
      "{\"step\":41,\"loss\":3.125,\"time\":\"2026-11-23T21:59:03.000Z\"}\n{\"event\":\"overflow\",\"step\":41,\"time\":\"2026-11-23T21:59:03.500Z\"}"
      "\n"
      "{\"step\":42,\"loss\":3,\"time\":\"2026-11-23T21:59:04.000Z\"}\n{\"step\":43,\"loss\":3,\"time\":\"2026-11-23T21:59:05.000Z\"}\n";
  std::vector<RankMemory> planned, measured;
  const ReporterOutput text = reporter_output(run, [&](Reporter& reporter, const std::string&) {
    int64_t padding = 0;
    const auto step = [&](int64_t number, StepResult result, double seconds, const Json& more = Json::object()) {
      reporter.step(number, result, seconds, more, padding += result.padding);
    };
    step(41, numbered_result(41), 0.5, {{"imbalance", 0.25}});
    step(42, numbered_result(42), 0.25, {{"imbalance", 0.125}, {"suspects", {0.5, 2.0, 0.25}}});
    for (const int64_t number : {43, 44}) {  // no target
      StepResult result = numbered_result(number);
      result.targets = 0;
      result.loss = result.grad_norm = 0;
      step(number, result, 0.125);
    }
    for (const bool overflows : {false, true})
      for (const auto& [number, parameter] : {std::pair<int64_t, const char*>{45, "blocks.1.mlp.up.weight"}, {46, ""}}) {
        StepResult result = numbered_result(number);
        result.accepted = false;
        result.grad_norm = kNotANumber;
        result.offender = parameter;
        result.overflow = overflows;
        step(number + (overflows ? 2 : 0), result, 0.125);
      }
    const StepLimits limits{.loss = 3.5, .grad_norm = 1.25, .finite_loss = true};
    for (const int64_t number : {49, 50}) {
      StepResult result = numbered_result(number);
      result.accepted = false;
      result.over_limit = true;
      result.loss = number == 49 ? 9.5 : 2;
      result.grad_norm = number == 49 ? 1 : kEndless;
      step(number, result, 0.125);
      reporter.anomaly(number, result, limits, number == 49 ? "skip" : "rerun", {{"outliers", {number - 47, 7}}},
                       text_of(anomaly_in(result, limits), result, limits) + "; the step was rejected on every rank, weights are unchanged");
    }
    reporter.anomaly(51, numbered_result(51), limits, "warn", Json::object(), "");  // no line, as a rejected step has one already
    reporter.evaluation(50, 2.5, {{"prose", 3.0}, {"code", 2.0}});
    reporter.evaluation(51, 2.25, {{"prose", 2.75}, {"code", 1.75}});
    reporter.saved({50, int64_t{5} << 20, 0.125, 2, std::nullopt});
    reporter.saved({51, int64_t{6} << 20, 0.25, 3, std::nullopt});
    reporter.saved({52, 0, 0, 0, "rank 3: no space"});
    reporter.saved({53, 0, 0, 0, "rank 7: the directory\nis gone \x1b[2J"});
    reporter.event("ranks", 51, {{"steps", 2}, {"busy_seconds", {0.5, 0.25}}, {"imbalance", 0.6666666666666666}});
    Reporter other;  // of the first rank of another island
    other.keep_island_events();
    StepResult result = numbered_result(51);
    result.targets = 0;
    for (const int64_t number : {51, 52}) other.step(number, result, 0.5);
    other.anomaly(52, numbered_result(52), limits, "warn", Json::object(), "the loss 9 is above 3.5; the step was accepted");
    const Json kept = other.take_island_events();
    reporter.report_island_events(1, kept);
    CHECK(other.take_island_events().empty());
    for (int64_t rank = 0; rank < 6; ++rank) {
      const int64_t unit = int64_t{1} << (rank == 4 ? 10 : 20 + rank);  // of six ranks the two with least memory are left out
      planned.push_back(numbered_memory(unit, static_cast<size_t>(rank)));
      measured.push_back(numbered_memory(unit + unit / 2, static_cast<size_t>((rank + 1) % 6)));
    }
    reporter.memory(60, planned, measured);
    reporter.forecast(60, 0.5, 0.4, 3.0 * (1 << 20), 4.0 * (int64_t{1} << 30));
    reporter.message("the first message");
    reporter.message("the second message\nhas two lines");
  });
  const std::string metrics = replaced(text.metrics, memory_json(planned).dump(), "(as forecast)");
  check_snapshot("run/reporter_metrics.txt", replaced(metrics, memory_json(measured).dump(), "(as measured)"));
  check_snapshot("run/reporter_log.txt", text.out);
  check_snapshot("run/reporter_messages.txt", text.messages);
}

namespace {

/// Both streams of a console on a terminal of `columns` columns, on which a line that is drawn anew begins with "~ " here.
class Terminal {
 public:
  Terminal(int64_t steps, size_t columns)
      : out_(::open_memstream(&text_, &size_)),
        console_(
            std::in_place, steps, std::nullopt, [=] { return columns; }, out_, out_) {}
  ~Terminal() {
    close();
    std::free(text_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;
  ConsoleSink& operator*() { return *console_; }
  std::string text() {
    close();
    return replaced({text_, size_}, "\r", "\n~ ");
  }

 private:
  void close() {
    console_.reset();
    if (out_ != nullptr) std::fclose(std::exchange(out_, nullptr));
  }

  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* out_;
  std::optional<ConsoleSink> console_;
};

}  // namespace

TEST_CASE("snapshot: run: a terminal, in each unit of rates and times, with two evaluations and two messages") {
  const TimeZone zone("UTC");
  const WallClock::time_point begin{std::chrono::seconds(1'795'471'170)};  // 2026-11-23T21:59:30Z
  Terminal terminal(4000, 160);
  const auto at = [&](double seconds) { return begin + std::chrono::milliseconds(std::llround(1000 * seconds)); };
  (*terminal).write({.kind = "start", .text = "a run", .time = begin});
  const auto step = [&](int64_t number, double time, double seconds, double rate, double loss) {
    Json fields = {{"loss", loss}, {"grad_norm", 10.0 / static_cast<double>(number)}, {"learning_rate", 3e-4 * static_cast<double>(number)}};
    fields.update(
        {{"step_seconds", seconds}, {"tokens_per_second", rate}, {"mfu", number % 2 == 0 ? Json() : Json(0.001 * static_cast<double>(number))}});
    fields["loss_scale"] = 1024 * number;
    (*terminal).write({.kind = "step", .step = number, .fields = fields, .time = at(time)});
  };
  step(1, 1, 40, 812, 11.5);        // warms up, and is forgotten
  step(2, 2, 30, 9999, 9.5);        // 1 d 09 h left
  step(3, 4, 10, 12'345, 8.25);     // smoothed: 28 s a step
  step(4, 12, 1, 999'949, 7.5);     // 25.3 s; more than ten seconds after the first line
  step(5, 12.05, 1, 4'560'000, 7);  // too soon to be drawn
  (*terminal).write({.kind = "", .text = "the first message"});
  for (int64_t number = 6; number <= 18; ++number) step(number, 8.1 + static_cast<double>(number), 0.5, 812, 7 - 0.25 * static_cast<double>(number));
  (*terminal).write(
      {.kind = "evaluation", .step = 10, .fields = {{"validation_loss", 4.25}, {"validation", {{"prose", 4.5}, {"code", 4.0}}}}, .time = at(30)});
  (*terminal).write({.kind = "evaluation", .step = 18, .fields = {{"validation_loss", 1.25}}, .time = at(9031)});
  (*terminal).write({.kind = "evaluation", .step = 3999, .fields = {{"validation_loss", 99.0}}, .time = at(9032)});  // behind the curve
  step(3990, 9033, 0.5, 812, 0.5);
  (*terminal).write({.kind = "", .text = "the second message\nwith a second line and \x1b[2J"});
  (*terminal).finish();
  const std::string text = terminal.text();
  check_snapshot("run/terminal.txt", text);
}

TEST_CASE("snapshot: run: what is said about anomalies of a step and of single ranks") {
  StepLimits limits{.loss = 3.5, .grad_norm = 1.25, .finite_loss = true, .reject_outliers = true};
  std::vector<RankResult> ranks;
  for (int r = 0; r < 8; ++r)
    ranks.push_back(
        {.rank = 16 + r, .host = concat("node", 5 + r / 4), .loss = 2 + 0.125 * r, .loss_limit = 3 + r, .grad_norm = 0.5 + 0.25 * (r % 3)});
  for (const size_t r : {1, 2, 4, 5, 6, 7}) {
    ranks[r].stands_out = true;
    ranks[r].loss = 10.0 + static_cast<double>(r % 5);
  }
  std::string text;
  const auto add = [&](const std::string& what, const StepResult& result) {
    const Anomaly anomaly = anomaly_in(result, limits);
    text += concat("# ", what, "\n", text_of(anomaly, result, limits), outliers_text(ranks), anomaly.only_ranks() ? "" : highest_text(ranks), "\n");
  };
  StepResult result;
  result.targets = 7;
  result.loss = 4.125;
  result.grad_norm = 2.5;
  result.outliers = 6;
  result.accepted = false;
  add("loss, gradient norm and six ranks", result);
  result.loss = 2;
  result.grad_norm = 1;
  add("six ranks only", result);
  ranks[1].stands_out = ranks[4].stands_out = ranks[6].stands_out = ranks[7].stands_out = false;
  ranks[6].loss = kNotANumber;
  ranks[3].grad_norm = kEndless;
  result.loss = kNotANumber;
  result.outliers = 2;
  add("a loss that is not finite, and two ranks", result);
  result.grad_norm = kEndless;
  for (RankResult& rank : ranks) {
    rank.loss.reset();
    rank.stands_out = false;
  }
  result.outliers = 0;
  add("neither is finite, and no rank has the last stage", result);

  text += "# exchanges\n";
  const std::string world = "world", pipeline = "pipeline";
  const std::vector<int> all{0, 1, 2, 3}, two{1, 3};
  std::vector<Exchange> first;
  for (const int64_t number : {7, 8, 9}) first.push_back({&world, &all, "all_reduce", true, number, -1, 1});
  for (const int64_t number : {4, 5}) first.push_back({&pipeline, &two, "exchange", true, number, 3, 2});
  for (const int64_t number : {20, 21}) first.push_back({&pipeline, &two, "exchange", false, number, 3, 3});
  first.push_back({&world, &all, "all_reduce", false, 10, -1, 4});
  std::vector<Exchange> second = first;
  for (const size_t place : {2, 4, 6, 7}) ++second[place].digest;
  for (const size_t changed : {2, 4, 6, 7}) {
    const ExchangeDifference difference = compare(first, second, 1);
    text += concat(difference.first, difference.first_is_sent ? " is sent" : " is received", "; sent differently:");
    for (const std::string& sent : difference.sent) text += " " + sent + ";";
    text += "\n";
    --second[changed].digest;
  }
  CHECK(compare(first, second, 1).first.empty());
  check_snapshot("run/anomalies.txt", text);
}

TEST_CASE("snapshot: run: why steps were rejected, and why a run stops early") {
  StepResult result;
  result.accepted = false;
  RejectedSteps rejected(3);
  result.loss = kNotANumber;
  rejected.add(4, result);
  CHECK(rejected.text() == "step 4 was rejected, because the loss and the gradient are not finite");
  result.over_limit = true;
  rejected.add(5, result);
  CHECK(rejected.text() == "2 steps in a row were rejected, the last of them step 5, because its loss or gradient norm is anomalous");
  result.over_limit = false;
  result.loss = 2;
  result.offender = "head.weight";
  rejected.add(9, result);
  CHECK(rejected.text() == "3 steps in a row were rejected, the last of them step 9, because the gradient of head.weight is not finite");
  CHECK(RejectedSteps(3, 1, " by island 1").text() == "1 step was rejected by island 1");

  EarlyStopping never({3, 0.0}, {});
  for (const int64_t step : {10, 20, 30}) never.add(step, kNotANumber);
  CHECK(never.reached());
  CHECK(never.text() == "the validation loss has not improved in 3 evaluations");
  EarlyStopping once({1, 0.0}, {});
  for (const auto& [step, loss] : {std::pair{10, 3.0}, {20, 2.5}, {30, 2.75}}) once.add(step, loss);
  CHECK(once.text() == "the validation loss has not improved in 1 evaluation since 2.5 at step 20");
  EarlyStopping twice({2, 0.25}, {});
  for (const auto& [step, loss] : {std::pair{10, 3.0}, {20, 2.5}, {30, 2.375}, {40, 2.125}, {50, 2.0}, {60, 1.9}}) twice.add(step, loss);
  CHECK(twice.reached());
  CHECK(twice.text() == "the validation loss has not improved by 0.25 in 2 evaluations since 2.125 at step 40");
}

TEST_CASE("snapshot: run: what a resumed run would change, with several keys of several sections") {
  Config saved = large_config(), now = saved;
  now.model.layers = 8;
  now.training.global_batch_size = 48;
  now.training.optimizer.learning_rate = 0.002;
  now.training.schedule.warmup_steps = 7;
  now.run.seed = 17;
  now.checkpoint.keep = 9;  // decides nothing that is trained
  std::string text = concat("# all\n", mathematical_difference(saved, now), advice_to_change(saved, now, {}, true), "\n");
  text += concat("# in another directory\n", advice_to_change(saved, now, {}, false), "\n");
  now.model.layers = saved.model.layers;
  text += concat("# without the model\n", mathematical_difference(saved, now), advice_to_change(saved, now, {}, true), "\n");
  const std::set<std::string> named{"training.global_batch_size", "run.seed"};
  text += concat("# two of them named\n", mathematical_difference(saved, now, named), advice_to_change(saved, now, named, false), "\n");
  CheckpointDescription about;
  about.step = 40;
  about.branch = {{10, 80, nlohmann::json::object()}, {30, 500, nlohmann::json::object()}};
  const ConfigChange change = change_of(about, saved, now, true, named);
  text += concat("# the change\nstep ", change.step, ", sample ", change.sample, "\n", change.changes.dump(), "\n");
  CHECK(change.sample == 500 + (40 - 30) * 24);  // behind the newest of two changes
  CHECK(change_of(about, saved, now, false, named).sample == 0);
  check_snapshot("run/changes.txt", text);
}

TEST_CASE("snapshot: run: prometheus with two of each figure, event and part, and a name that needs escaping") {
  PrometheusFigures figures("a \"run\"\\of two\nlines", 2000);
  for (const int64_t step : {41, 42}) {
    const auto n = static_cast<double>(step);
    figures.take({.kind = "step",
                  .step = step,
                  .fields = {{"loss", 100 / n}, {"grad_norm", step == 42 ? kNotANumber : 1}, {"mfu", nullptr}, {"suspects", {n, n + 1, n + 5}}},
                  .time = WallClock::time_point(std::chrono::milliseconds(1'795'471'170'250 + step))});
    figures.take({.kind = "evaluation", .step = step, .fields = {{"validation_loss", 3 / n}, {"validation", {{"prose", n}, {"code", -n}}}}});
    figures.take(
        {.kind = "ranks",
         .step = step,
         .fields = {{"steps", 2}, {"busy_seconds", {0.5, 0.25, n}}, {"wait_seconds", {{"shard", 0.125}, {"world", n}}}, {"imbalance", 1 / n}}});
    figures.take({.kind = "checkpoint", .fields = {{"bytes", 4096}}});
    figures.take({.kind = "overflow", .step = step, .fields = {{"parameter", "head"}}});
    figures.take({.kind = "", .text = "a message"});
  }
  figures.take({.kind = "overflow", .step = 43});
  CHECK(figures.text().find("trireme_step_time_seconds{run=\"a \\\"run\\\"\\\\of two\\nlines\"} 1795471170.292\n") != std::string::npos);
  CHECK(figures.version() == 11);
  check_snapshot("run/prometheus.txt", figures.text());
}

TEST_CASE("snapshot: run: loss curve: validations outside of its steps, two at one place, and means of columns of several steps") {
  LossCurve curve;
  for (int64_t step = 101; step <= 300; ++step) curve.add(step, step % 2 == 0 ? 3.0 : 1.0);  // means of even numbers of steps are 2
  for (const auto& [step, loss] : {std::pair<int64_t, double>{100, 99}, {101, 4}, {200, 2.5}, {200, 1}, {300, 1}, {301, 99}})
    curve.add_validation(step, loss);
  check_snapshot("run/loss_curve.txt", curve.text(60) + curve.text(150));
}

}  // namespace trireme::test
