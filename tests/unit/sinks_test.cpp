// What becomes of a run whose sinks cannot be opened or fail.
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "trainer/loop/histograms.h"
#include "trainer/run/sinks.h"

using namespace trireme;
using namespace trireme::test;

namespace {

/// Notes the steps of its events; throws at step `throws_at`; reports `error` from write_error().
struct NotingSink final : EventSink {
  struct Notes {
    std::vector<int64_t> steps;
    std::string error;
    int64_t throws_at = -1;
    int evaluating = 0, histograms = 0, finished = 0, synced = 0;
  };
  explicit NotingSink(Notes& notes) : notes_(notes) {}
  void write(const Event& event) override {
    if (event.step == notes_.throws_at) throw InternalError("out of memory");
    notes_.steps.push_back(*event.step);
  }
  void evaluating(int64_t, int64_t, int64_t, double) override { ++notes_.evaluating; }
  void histograms(int64_t, const std::vector<Histogram>&) override { ++notes_.histograms; }
  void finish() override { ++notes_.finished; }
  std::string write_error() const override { return notes_.error; }
  void sync() const override { ++notes_.synced; }

 private:
  Notes& notes_;
};

using Messages = std::vector<std::string>;

}  // namespace

TEST_CASE("sinks: an optional sink that throws is reported once, and the others get every event", "[metrics]") {
  NotingSink::Notes failing, after;
  failing.throws_at = 2;
  Sinks sinks;
  sinks.add("observe.first", false, std::make_unique<NotingSink>(failing));
  sinks.add("metrics.jsonl", true, std::make_unique<NotingSink>(after));
  CHECK(sinks.write({"step", 1}).empty());
  CHECK(sinks.write({"step", 2}) == Messages{"warning: observe.first: out of memory; the run continues without it"});
  CHECK(sinks.write({"step", 3}).empty());
  sinks.evaluating(3, 0, 1, 0);
  CHECK(failing.steps == std::vector<int64_t>{1});
  CHECK(failing.evaluating == 0);
  CHECK(after.steps == std::vector<int64_t>{1, 2, 3});
  CHECK(after.evaluating == 1);
  after.throws_at = 4;
  CHECK_THROWS_WITH(sinks.write({"step", 4}), "out of memory");
}

TEST_CASE("sinks: two optional sinks that fail are reported each by itself, together or one after the other", "[metrics]") {
  NotingSink::Notes first, second, third;
  first.throws_at = third.throws_at = 2;
  second.throws_at = 3;
  Sinks sinks;
  sinks.add("observe.first", false, std::make_unique<NotingSink>(first));
  sinks.add("observe.second", false, std::make_unique<NotingSink>(second));
  sinks.add("observe.third", false, std::make_unique<NotingSink>(third));
  CHECK(sinks.write({"step", 1}).empty());
  CHECK(sinks.write({"step", 2}) == Messages{"warning: observe.first: out of memory; the run continues without it",
                                             "warning: observe.third: out of memory; the run continues without it"});
  CHECK(sinks.write({"step", 3}) == Messages{"warning: observe.second: out of memory; the run continues without it"});
  CHECK(sinks.write({"step", 4}).empty());
  CHECK(first.steps == std::vector<int64_t>{1});
  CHECK(second.steps == std::vector<int64_t>{1, 2});
  CHECK(third.steps == std::vector<int64_t>{1});

  NotingSink::Notes one, two;
  Sinks full;
  full.add("metrics.jsonl", true, std::make_unique<NotingSink>(one));
  full.add("observe.second", false, std::make_unique<NotingSink>(two));
  one.error = "cannot write a: no space";
  two.error = "cannot write b: no space";
  CHECK(full.new_errors() == Messages{"cannot write a: no space; its lines are buffered until there is space",
                                      "warning: observe.second: cannot write b: no space; the run continues, and what could not be written is tried "
                                      "again"});
  CHECK(full.write_error() == "cannot write a: no space");
}

TEST_CASE("sinks: histograms, the end and a flush reach every sink that works, and the first required one with an error is named", "[metrics]") {
  NotingSink::Notes failing, second, third, fourth;
  failing.throws_at = 1;
  Sinks sinks;
  sinks.add("observe.first", false, std::make_unique<NotingSink>(failing));
  sinks.add("metrics.jsonl", true, std::make_unique<NotingSink>(second));
  sinks.add("terminal", true, std::make_unique<NotingSink>(third));
  sinks.add("observe.fourth", false, std::make_unique<NotingSink>(fourth));
  CHECK(sinks.write({"step", 1}).size() == 1);
  for (const int64_t step : {1, 2}) sinks.histograms(step, {});
  for (const int64_t done : {0, 1, 2}) sinks.evaluating(1, done, 3, 0.5);
  sinks.finish();
  sinks.sync();
  CHECK((failing.histograms == 0 && failing.evaluating == 0 && failing.finished == 0));
  for (const NotingSink::Notes* const notes : {&second, &third, &fourth}) {
    CHECK(notes->histograms == 2);
    CHECK(notes->evaluating == 3);
    CHECK(notes->finished == 1);
    CHECK(notes->synced == 1);
  }
  fourth.error = "cannot write d";
  CHECK(sinks.write_error().empty());
  third.error = "cannot write c";
  CHECK(sinks.write_error() == "cannot write c");
  CHECK(sinks.new_errors() == Messages{"cannot write c; its lines are buffered until there is space",
                                       "warning: observe.fourth: cannot write d; the run continues, and what could not be written is tried again"});
  second.error = "cannot write b";
  CHECK(sinks.write_error() == "cannot write b");
  CHECK(sinks.new_errors() == Messages{"cannot write b; its lines are buffered until there is space"});
}

TEST_CASE("sinks: an error of writing is reported once until it is over, and only that of a required sink ends a run", "[metrics]") {
  NotingSink::Notes optional, required;
  Sinks sinks;
  sinks.add("observe.first", false, std::make_unique<NotingSink>(optional));
  sinks.add("metrics.jsonl", true, std::make_unique<NotingSink>(required));
  CHECK(sinks.new_errors().empty());
  optional.error = "cannot write a: no space";
  CHECK(sinks.new_errors() ==
        Messages{"warning: observe.first: cannot write a: no space; the run continues, and what could not be written is tried again"});
  CHECK(sinks.new_errors().empty());
  CHECK(sinks.write_error().empty());
  required.error = "cannot write b: no space";
  CHECK(sinks.new_errors() == Messages{"cannot write b: no space; its lines are buffered until there is space"});
  CHECK(sinks.write_error() == "cannot write b: no space");
  optional.error = required.error = "";
  CHECK(sinks.new_errors().empty());
  optional.error = "cannot write a: no space";
  CHECK(sinks.new_errors().size() == 1);
}

TEST_CASE("sinks: the configuration decides which are opened, an optional one that cannot be is one message, metrics.jsonl is an error",
          "[metrics]") {
  const Scratch scratch;
  Config config;
  config.run.directory = scratch / "";
  const RunHistory history;
  std::FILE* const null = std::fopen("/dev/null", "w");
  const auto opened = [&] { return Sinks().open({config, history, 10, {}, null, null}); };
  CHECK(opened().empty());
  CHECK(scratch.names() == std::vector<std::string>{"metrics.jsonl"});

  config.observe.tensorboard = true;
  CHECK(opened().empty());
  CHECK(scratch.names() == std::vector<std::string>{"metrics.jsonl", "tensorboard"});
  // The hyper-parameters are the keys that decide the mathematics, the execution or the layout. Elsewhere in the file keys have no dots.
  const std::string board = slurp(scratch / ("tensorboard/" + Scratch::names_in(scratch / "tensorboard").front()));
  for (const char* key : {"parallel.tensor", "parallel.pipeline", "parallel.zero_stage", "training.recompute", "training.optimizer.learning_rate"}) {
    CAPTURE(key);
    CHECK(board.find(key) != board.npos);
  }
  CHECK(board.find("checkpoint.keep") == board.npos);
  CHECK(board.find("run.directory") == board.npos);

  scratch.write("occupied", "");
  config.observe.tensorboard = scratch / "occupied";
  CHECK(opened() ==
        Messages{"warning: observe.tensorboard: cannot create " + scratch / "occupied" + ": Not a directory; the run continues without it"});

  config.run.directory = scratch / "missing";
  CHECK_THROWS_AS(opened(), IoError);
  std::fclose(null);
}

TEST_CASE("events: the numbers of a measurement", "[metrics]") {
  const auto text = [](const Event& event) {
    std::string all;
    for (const Figure& figure : figures_of(event)) all += concat(figure.name, "|", figure.part, "=", figure.value, " ");
    return all;
  };
  CHECK(text({"step", 1, {{"loss", 2.5}, {"mfu", nullptr}, {"data_tokens", {{"data/a", 128}}}}}) == "loss|=2.5 data_tokens|data/a=128 ");
  CHECK(text({"evaluation", 1, {{"validation_loss", std::numeric_limits<double>::infinity()}}}) == "validation_loss|=inf ");
  CHECK(text({"ranks", 4, {{"steps", 3}, {"busy_seconds", {4, 1, nullptr, 2.5}}, {"gpu_power_watts", {nullptr, nullptr}}}}) ==
        "ranks/steps|=3 ranks/busy_seconds|min=1 ranks/busy_seconds|mean=2.5 ranks/busy_seconds|max=4 ");
  CHECK(text({"exposed", 4, {{"tensor", 0.5}}}) == "exposed/tensor|=0.5 ");
  CHECK(text({"step", {}, {{"loss", 2.5}}}).empty());
  CHECK(text({"checkpoint", 4, {{"bytes", 2}}}).empty());
}
