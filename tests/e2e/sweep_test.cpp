// `trireme sweep`: many runs of one file, which go through kills, stops and failures.
#include <csignal>
#include <fstream>
#include <random>
#include <thread>

#include "kernels/core/check.h"
#include "tests/e2e/fingerprint.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;
using Catch::Matchers::Contains;
using nlohmann::json;

namespace trireme::test {
namespace {

constexpr int64_t kPointSteps = 12;

const std::string kSmallRun = R"(run: {device: cpu}
model: {layers: 1, hidden_size: 8, heads: 2, kv_heads: 1, ffn_size: 16}
training:
  steps: 12
  sequence_length: 16
  global_batch_size: 2
  optimizer: {learning_rate: 1.0e-2}
  evaluate: {every: 4, batches: 1}
data: {train: [train], validation: [validation]}
checkpoint: {every: 4}
)";

void prepare_sweep(const TemporaryDirectory& home) {
  build_data(home);
  write_file(home / "run.yaml", kSmallRun);
}

/// A sweep in `directory`, an absolute path, so that processes of its points can be told from those of other tests.
void write_sweep(const TemporaryDirectory& home, const std::string& name, const std::string& rest) {
  write_file(home / (name + ".yaml"), concat("base: run.yaml\ndirectory: ", (home / name).string(), "\n", rest));
}

const std::string kTwentyFour =
    "axes:\n  training.optimizer.learning_rate: {grid: logspace, from: 0.001, to: 0.1, count: 6}\n  run.seed: [1, 2]\n  model.dropout: [0, 0.1]\n"
    "where: {at_once: 2}\n";

/// The run directories of the points, by index.
std::vector<fs::path> points_in(const fs::path& sweep) {
  std::vector<fs::path> found;
  for (const std::string& name : names_in(sweep / "points")) found.push_back(sweep / "points" / name);
  return found;
}

std::vector<json> events_of(const fs::path& sweep, size_t index) {
  std::vector<json> events;
  std::ifstream file(sweep / "jobs" / (index < 10 ? concat("00", index) : concat("0", index)) / "events.jsonl");
  for (std::string line; std::getline(file, line);) events.push_back(json::parse(line));
  return events;
}

/// Points that have ended with code 0.
size_t done_points(const fs::path& sweep, size_t points) {
  size_t done = 0;
  for (size_t i = 0; i < points; ++i)
    for (const json& event : events_of(sweep, i)) done += event["event"] == "end" && event["code"] == 0 ? 1 : 0;
  return done;
}

bool holds_within(double limit, const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(limit);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

/// Each point was started until it was done, and never again; jobs without an end are those that died with the sweep.
void check_starts(const fs::path& sweep, size_t points, size_t kills, size_t at_once) {
  size_t starts = 0, unfinished = 0;
  for (size_t i = 0; i < points; ++i) {
    CAPTURE(i);
    bool open = false, done = false;
    for (const json& event : events_of(sweep, i)) {
      CHECK_FALSE(done);
      if (event["event"] == "start") {
        unfinished += open ? 1 : 0;
        ++starts;
        open = true;
      } else {
        open = false;
        done = event["code"] == 0;
      }
    }
    CHECK(done);
  }
  CHECK(starts == points + unfinished);
  CHECK(unfinished <= kills * at_once);
}

/// Kills the sweep itself, not its points, at a random moment. Returns false if it ended before.
bool kill_once(const TemporaryDirectory& home, const std::string& name, std::mt19937& random, bool wait_for_points) {
  const size_t before = done_points(home / name, 24), target = before + 1 + random() % 6;
  Process sweep({kBinary, "sweep", name + ".yaml"}, home.path());
  if (!holds_within(60, [&] { return !sweep.running() || done_points(home / name, 24) >= target; })) FAIL("the sweep does not advance");
  std::this_thread::sleep_for(std::chrono::milliseconds(random() % 150));
  if (!sweep.running()) return false;
  sweep.signal(SIGKILL);
  sweep.wait();
  if (wait_for_points) CHECK(holds_within(3, [&] { return processes_with((home / name).string()).empty(); }));  // the kernel has killed them too
  return true;
}

/// A sweep that is killed twice, and one that is not, have the same bits.
void check_killed_twice(const TemporaryDirectory& home, const std::string& name, std::mt19937& random) {
  write_sweep(home, name, kTwentyFour);
  size_t kills = 0;
  for (int i = 0; i < 2; ++i) kills += kill_once(home, name, random, i == 0) ? 1 : 0;
  CHECK(kills == 2);
  const Outcome last = must(home, {"sweep", name + ".yaml"});
  CHECK(says(last, "24 of 24 points done"));
  check_starts(home / name, 24, kills, 2);
  const std::vector<fs::path> expected = points_in(home / "undisturbed"), found = points_in(home / name);
  REQUIRE(expected.size() == 24);
  REQUIRE(found.size() == 24);
  for (size_t i = 0; i < 24; ++i) {
    CAPTURE(found[i].string());
    CHECK(losses(found[i], kPointSteps).size() == kPointSteps);  // each step once
    CHECK(fingerprint_of(found[i], kPointSteps) == fingerprint_of(expected[i], kPointSteps));
  }
  const json a = json::parse(read_file(home / "undisturbed/results.json")), b = json::parse(read_file(home / name / "results.json"));
  for (size_t i = 0; i < 24; ++i) {
    CHECK(a["points"][i]["objective"] == b["points"][i]["objective"]);
    CHECK(a["points"][i]["point"] == b["points"][i]["point"]);
  }
}

}  // namespace

TEST_CASE("sweep: 24 points that are killed twice end with the bits of an undisturbed sweep") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "undisturbed", kTwentyFour);
  must(home, {"sweep", "undisturbed.yaml"});
  check_starts(home / "undisturbed", 24, 0, 2);
  std::mt19937 random(1);
  check_killed_twice(home, "killed", random);
}

TEST_CASE("sweep: twenty sweeps that are killed twice at random moments lose no point and run none twice", "[slow]") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "undisturbed", kTwentyFour);
  must(home, {"sweep", "undisturbed.yaml"});
  for (unsigned trial = 0; trial < 20; ++trial) {
    CAPTURE(trial);
    std::mt19937 random(100 + trial);
    check_killed_twice(home, concat("killed-", trial), random);
  }
}

TEST_CASE("sweep: results, the report and the best point as a configuration") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "s", "set: {training.steps: 8}\naxes: {training.optimizer.learning_rate: [0.0001, 0.03], model.architecture: [llama, gpt2]}\n");
  const auto before = home.listing();
  const Outcome dry = must(home, {"sweep", "s.yaml", "--dry-run"});
  CHECK_THAT(dry.out, Contains("4 points, 32 steps"));
  CHECK(home.changes_since(before).empty());

  const Outcome done = must(home, {"sweep", "s.yaml", "--json"});
  const json results = json::parse(done.out);
  CHECK(results == json::parse(read_file(home / "s/results.json")));
  REQUIRE(results["points"].size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    const json& point = results["points"][i];
    CHECK(point["state"] == "done");
    CHECK(point["steps"] == 8);
    CHECK(point["objective"].get<double>() == validation_loss(point["directory"].get<std::string>()));
    if (i > 0) CHECK(point["objective"].get<double>() >= results["points"][i - 1]["objective"].get<double>());
  }
  CHECK(results["best"] == results["points"][0]["point"]);
  CHECK(results["points"][0]["settings"]["training.optimizer.learning_rate"] == "0.03");
  CHECK(count(read_file(home / "s/results.csv"), "\n") == 5);

  const std::string page = read_file(home / "s/sweep.html");
  for (const char* heading : {"Losses", "Objective over each axis", "Best point", "Points, best first"})
    CHECK(count(page, concat("<h2>", heading, "</h2>")) == 1);
  CHECK_THAT(page, Contains("training.optimizer.learning_rate: 0.01 -&gt; 0.03"));

  // The best configuration trains to the bits of its point.
  must(home, {"train", "s/best.yaml"});
  const fs::path best = results["points"][0]["directory"].get<std::string>();
  CHECK(fingerprint_of(home / "runs/s-best", 8) == fingerprint_of(best, 8));
  CHECK(run(home, {"compare", best.string(), "runs/s-best"}).code == 0);
  must(home, {"report", best.string(), results["points"][1]["directory"].get<std::string>(), "--output", "two.html"});

  // A sweep that is done starts nothing.
  const std::string events = read_file(home / "s/jobs/000/events.jsonl");
  CHECK(says(must(home, {"sweep", "s.yaml"}), "4 of 4 points done"));
  CHECK(read_file(home / "s/jobs/000/events.jsonl") == events);
  // A run directory that is gone is trained again, and no other.
  fs::remove_all(best);
  must(home, {"sweep", "s.yaml"});
  CHECK(fingerprint_of(home / "runs/s-best", 8) == fingerprint_of(best, 8));
}

TEST_CASE("sweep: a stop request saves all points, a second sweep is refused meanwhile, and the next job resumes") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(
      home, "s",
      "set: {training.steps: 2000000, checkpoint.every: 1000000, training.evaluate.every: 0}\naxes: {run.seed: [1, 2, 3]}\nwhere: {at_once: 2}\n");
  const auto step = [&](const std::string& point) {
    const fs::path path = home / "s/points" / point / "metrics.jsonl";
    return fs::exists(path) ? count(read_file(path), "\"loss\"") : 0;
  };
  const auto both_train = [&] { return step("000-seed=1") > 3 && step("001-seed=2") > 3; };
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    Process sweep({kBinary, "sweep", "s.yaml"}, home.path());
    const size_t before = step("000-seed=1");
    REQUIRE(holds_within(20, [&] { return both_train() && step("000-seed=1") > before + 1; }));
    const auto listing = names_in(home / "s");
    if (number == SIGTERM) {
      check(run(home, {"sweep", "s.yaml"}), 64,
            "directory=" + (home / "s").string() + ": another sweep is running there (process " + std::to_string(sweep.pid()));
      check(run(home, {"sweep", "s.yaml", "--point", "1"}), 64, "another process is running it");
      CHECK(names_in(home / "s") == listing);
    }
    sweep.signal(number);
    const Outcome outcome = sweep.wait();
    check_error(outcome, 75, "stopped on request, checkpoints saved; rerun the same command to resume");
    CHECK(processes_with((home / "s").string()).empty());
  }
  for (const char* point : {"000-seed=1", "001-seed=2"}) {
    const size_t trained = losses(home / "s/points" / point, step(point)).size();
    CHECK(checkpoint_names(home / "s/points" / point).contains(concat("step-", std::string(8 - std::to_string(trained).size(), '0'), trained)));
    const auto jobs = metrics(home / "s/points" / point);
    CHECK(std::ranges::count_if(jobs, [](const json& line) { return line.contains("event") && line["event"] == "start"; }) == 3);
  }
  CHECK_FALSE(fs::exists(home / "s/points/002-seed=3"));
  CHECK(json::parse(read_file(home / "s/results.json"))["points"][0]["state"] == "begun");
}

TEST_CASE("sweep: points that fail are recorded with their messages, and the others are trained") {
  TemporaryDirectory home;
  prepare_sweep(home);
  const std::string rest =
      "set: {training.max_rejected_steps: 2}\naxes: {training.optimizer.learning_rate: [0.01, 1.0e30, 1.0e31, 0.02]}\nwhere: {at_once: 1}\n";
  write_sweep(home, "s", rest);
  const Outcome some = must(home, {"sweep", "s.yaml"}, 1);
  CHECK(says(some, "2 of 4 points done, 2 failed"));
  CHECK(says(some, "point 1 (learning_rate=1.0e30): failed with exit code 70: training has diverged"));
  const json results = json::parse(read_file(home / "s/results.json"));
  CHECK(results["failed"] == 2);
  CHECK(results["points"][2]["failure"]["code"] == 70);
  CHECK_THAT(results["points"][2]["failure"]["message"].get<std::string>(), Contains("training has diverged"));
  CHECK(count(read_file(home / "s/sweep.html"), "<h2>Failures</h2>") == 1);
  // They are not tried again, unless that is asked for.
  must(home, {"sweep", "s.yaml"}, 1);
  CHECK(events_of(home / "s", 1).size() == 2);
  must(home, {"sweep", "s.yaml", "--retry-failed"}, 1);
  CHECK(events_of(home / "s", 1).size() == 5);
  CHECK(events_of(home / "s", 0).size() == 2);

  write_sweep(home, "limited", rest + "stop_after_failures: 1\n");
  const Outcome limited = must(home, {"sweep", "limited.yaml"}, 1);
  CHECK(says(limited, "stop_after_failures=1 is reached"));
  CHECK_FALSE(fs::exists(home / "limited/points/003-learning_rate=0.02"));
}

TEST_CASE("sweep: points die with a sweep that is killed") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "s", "set: {training.steps: 100000000, training.evaluate.every: 0}\naxes: {run.seed: [1, 2]}\nwhere: {at_once: 2}\n");
  Process sweep({kBinary, "sweep", "s.yaml"}, home.path());
  const auto trains = [&](const char* point) { return fs::exists(home / "s/points" / point / "checkpoints/latest"); };
  REQUIRE(holds_within(30, [&] { return trains("000-seed=1") && trains("001-seed=2"); }));
  CHECK(processes_with((home / "s/jobs").string()).size() == 2);
  sweep.signal(SIGKILL);
  sweep.wait();
  CHECK(holds_within(3, [&] { return processes_with((home / "s/jobs").string()).empty(); }));
}

TEST_CASE("sweep: a point that is killed is started again, and fails if that happens too often") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "s", "set: {training.steps: 1000000, training.evaluate.every: 0}\naxes: {run.seed: [1]}\nretries: 1\n");
  Process sweep({kBinary, "sweep", "s.yaml"}, home.path());
  pid_t killed = 0;
  for (int i = 0; i < 2; ++i) {
    pid_t point = 0;
    REQUIRE(holds_within(20, [&] {
      const std::vector<pid_t> found = processes_with((home / "s/jobs/000/config.yaml").string());
      if (found.size() != 1 || found[0] == killed || events_of(home / "s", 0).size() < static_cast<size_t>(2 * i + 1)) return false;
      point = found[0];
      return true;
    }));
    REQUIRE(::kill(point, SIGKILL) == 0);
    killed = point;
  }
  const Outcome outcome = sweep.wait();
  check_error(outcome, 1, "point 0 (seed=1): killed by signal 9; started again");
  CHECK(says(outcome, "point 0 (seed=1): failed with exit code 137: killed by signal 9"));
}

TEST_CASE("sweep: halving resumes the best points of each rung, which end with the bits of a complete run") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "s",
              "axes: {training.optimizer.learning_rate: [0.00001, 0.0001, 0.001, 0.01, 0.03, 0.1]}\nwhere: {at_once: 2}\n"
              "objective: {metric: loss, average: 2}\nhalving: {first_steps: 3, eta: 2}\n");
  const Outcome outcome = must(home, {"sweep", "s.yaml"});
  CHECK(says(outcome, "2 of 6 points done, 4 dropped by halving"));
  const json results = json::parse(read_file(home / "s/results.json"));
  std::map<int64_t, int> lengths;
  std::vector<std::pair<double, int64_t>> first;  // mean loss at the end of the first rung, and how far the point has trained
  for (const json& point : results["points"]) {
    const auto steps = point["steps"].get<int64_t>();
    ++lengths[steps];
    const std::vector<double> all = losses(point["directory"].get<std::string>(), static_cast<size_t>(steps));
    first.emplace_back((all[1] + all[2]) / 2, steps);
  }
  CHECK(lengths == std::map<int64_t, int>{{3, 3}, {6, 1}, {12, 2}});
  std::ranges::sort(first);
  for (size_t i = 0; i < 6; ++i) CHECK((first[i].second > 3) == (i < 3));
  // The schedule is that of the complete run.
  const json& best = results["points"][0];
  CHECK(best["steps"] == 12);
  must(home, Arguments{"train", "run.yaml"} + in("direct") +
                 sets({"training.optimizer.learning_rate=" + best["settings"]["training.optimizer.learning_rate"].get<std::string>()}));
  CHECK(losses(home / "direct", 12) == losses(best["directory"].get<std::string>(), 12));

  write_sweep(home, "bad", "axes: {run.seed: [1, 2]}\nhalving: {first_steps: 3}\n");
  check(run(home, {"sweep", "bad.yaml"}), 64,
        "halving.first_steps=3: no evaluation at the end of the rung of 3 steps, as training.evaluate.every is 4");
}

TEST_CASE("sweep: budgets leave out what does not fit") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "points", "axes: {run.seed: [1, 2, 3]}\nbudget: {points: 2}\n");
  CHECK(says(must(home, {"sweep", "points.yaml"}), "2 of 3 points done, 1 left out by the budget"));
  write_sweep(home, "steps", "axes: {run.seed: [1, 2, 3]}\nbudget: {steps: 30}\n");
  CHECK(says(must(home, {"sweep", "steps.yaml"}), "2 of 3 points done, 1 left out by the budget"));
  write_sweep(home, "steps", "axes: {run.seed: [1, 2, 3]}\nbudget: {steps: 36}\n");
  CHECK(says(must(home, {"sweep", "steps.yaml"}), "3 of 3 points done"));
  write_sweep(home, "hours",
              "set: {training.steps: 1000000, training.evaluate.every: 0}\naxes: {run.seed: [1, 2]}\nbudget: {hours: 0.0003}\nwhere: {at_once: 1}\n");
  const Outcome hours = must(home, {"sweep", "hours.yaml"}, 1);
  CHECK(says(hours, "budget.hours=0.0003 are used up; points that were running have saved checkpoints"));
  CHECK(hours.seconds < 20);
  CHECK(names_in(home / "hours/points").size() == 1);
  CHECK_FALSE(checkpoint_names(home / "hours/points/000-seed=1").empty());
  const Outcome again = must(home, {"sweep", "hours.yaml"}, 1);  // the hours of all jobs count
  CHECK(names_in(home / "hours/points").size() == 1);
  CHECK(says(again, "are used up"));
}

TEST_CASE("sweep: a range test plots the loss over the learning rate and suggests one") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "s", "set: {training.max_rejected_steps: 4}\nrange_test: {from: 1.0e-5, to: 10, steps: 120}\n");
  const Outcome outcome = must(home, {"sweep", "s.yaml"});
  CHECK_THAT(outcome.out, Contains("there the smoothed loss falls fastest"));
  CHECK(json::parse(read_file(home / "s/results.json"))["range_test"]["suggested"].is_number());
  CHECK_FALSE(fs::exists(home / "s/best.yaml"));
  const std::vector<json> lines = metrics(home / "s/points/000-range_test");
  std::vector<double> rates;
  for (const json& line : lines)
    if (line.contains("loss")) rates.push_back(line["learning_rate"]);
  REQUIRE(rates.size() > 60);
  for (size_t i = 1; i < rates.size(); ++i) CHECK(rates[i] / rates[i - 1] == Approx(std::pow(1e6, 1 / 120.0)).epsilon(1e-9));
  CHECK(rates[59] == Approx(1e-5 * std::pow(1e6, 0.5)).epsilon(1e-9));
  const std::string page = read_file(home / "s/sweep.html");
  CHECK_THAT(page, Contains("Loss over learning rate"));
  CHECK_THAT(page, Contains("Suggested learning rate"));
}

TEST_CASE("sweep: a file that has changed is refused with the difference, and points may be added") {
  TemporaryDirectory home;
  prepare_sweep(home);
  const std::string rest = "axes: {training.optimizer.learning_rate: [0.01, 0.02], run.seed: [1, 2]}\n";
  write_sweep(home, "s", rest);
  must(home, {"sweep", "s.yaml"});
  const auto before = home.listing();
  const auto refused = [&](const std::string& text, const std::string& message) {
    write_file(home / "s.yaml", text);
    check(run(home, {"sweep", "s.yaml"}), 64, message);
  };
  const std::string head = concat("base: run.yaml\ndirectory: ", (home / "s").string(), "\n");
  refused(head + "axes: {training.optimizer.learning_rate: [0.01, 0.03], run.seed: [1, 2]}\n",
          "point 2: training.optimizer.learning_rate: 0.02 -> 0.03");
  refused(head + "axes: {training.optimizer.learning_rate: [0.01], run.seed: [1, 2]}\n", "points: 4 -> 2");
  refused(head + "axes: {training.optimizer.learning_rate: [0.01, 0.02], model.layers: [1, 2]}\n", "point 0: run.seed: 1 -> not an axis");
  refused(head + rest + "set: {model.dropout: 0.1}\n", "model.dropout: 0 -> 0.1");
  refused(head + rest + "halving: {first_steps: 4}\n", "halving: none -> ");
  write_file(home / "s.yaml", head + rest);
  write_file(home / "run.yaml", kSmallRun + "observe: {print_every: 3}\n");
  check(run(home, {"sweep", "s.yaml"}), 64, "observe.print_every: auto -> 3");
  write_file(home / "run.yaml", kSmallRun);
  const std::string changes = home.changes_since(before);
  CHECK(changes.find((home / "s/").string()) == std::string::npos);

  write_sweep(home, "s", "axes: {training.optimizer.learning_rate: [0.01, 0.02, 0.03], run.seed: [1, 2]}\nretries: 3\n");
  CHECK(says(must(home, {"sweep", "s.yaml"}), "6 of 6 points done"));
  check_starts(home / "s", 6, 0, 1);
  // A line that a crash has cut does no harm; a damaged list of points does, and is refused.
  write_file(home / "s/jobs/000/events.jsonl", read_file(home / "s/jobs/000/events.jsonl") + "{\"event\": \"sta");
  CHECK(says(must(home, {"sweep", "s.yaml"}), "6 of 6 points done"));
  write_file(home / "s/points.json", "{\"version\": 1");
  check(run(home, {"sweep", "s.yaml"}), 65, "points.json");
}

TEST_CASE("sweep: bad input is refused by name before anything is written") {
  TemporaryDirectory home;
  prepare_sweep(home);
  fs::create_directory(home / "occupied");
  write_file(home / "occupied/notes.txt", "not a sweep");
  struct Bad {
    const char* text;
    int code;
    const char* message;
  };
  const std::vector<Bad> files{
      {"base: run.yaml\naxes: {training.optimizer.learning_rat: [1]}", 64, "bad.yaml:2:8 axes.training.optimizer.learning_rat: unknown key"},
      {"base: run.yaml\naxes: {model.layers: [1, 0]}", 64,
       "bad.yaml:2:26 model.layers=0: out of range; allowed integer from 1 to 1024; nearest valid 1 (point 1: layers=0)"},
      {"base: run.yaml\naxes: {model.layers: [1, two]}", 64, "bad.yaml:2:26 model.layers=two: not an integer in decimal digits"},
      {"base: run.yaml\nset: {training.precision: fp31}\naxes: {model.layers: [1]}", 64,
       "bad.yaml:2:27 training.precision=fp31: not one of the choices"},
      {"base: run.yaml\naxes: {run.seed: [1, \"2\"]}", 64, "run.seed=2: quoted text where a plain value is expected"},
      {"base: run.yaml\naxes: {model.dropout: [0.1, 1.0e-1]}", 64, "bad.yaml:2:1 axes: points 0 and 1 are the same run"},
      {"base: run.yaml\naxes: {model.heads: [2, 3]}", 64, "(point 1: heads=3)"},
      {"base: missing.yaml\naxes: {model.layers: [1]}", 66, "missing.yaml"},
      {"base: run.yaml\naxes: {data.train: [[train], [absent]]}", 66, "absent"},
      {"base: run.yaml\naxes: {data.train: [[train], [\"a'b\\n$(touch hacked)\"]]}", 66, "a'b\n$(touch hacked): no such token directory"},
      {"base: run.yaml\naxes: {data.train: [[train], [\"a'b $(touch hacked)\"]]}", 66, "a'b $(touch hacked)"},
      {"base: run.yaml\ndirectory: occupied\naxes: {model.layers: [1]}", 64,
       "bad.yaml:2:12 directory=occupied: not empty, and not the directory of a sweep"},
      {"base: run.yaml\ndirectory: run.yaml\naxes: {model.layers: [1]}", 64, "directory=run.yaml: not a directory"},
      {"base: run.yaml\nobjective: {metric: validation_loss}\nset: {data.validation: [], training.evaluate.every: 0, training.evaluate.batches: "
       "0}\naxes: {model.layers: [1]}",
       64, "objective.metric=validation_loss: the points have no validation set; allowed loss, tokens_per_second or step_seconds"},
      {"base: [", 64, "bad.yaml:1"},
  };
  for (const Bad& bad : files) {
    INFO(bad.text);
    write_file(home / "bad.yaml", bad.text);
    const auto before = home.listing();
    check(run(home, {"sweep", "bad.yaml"}), bad.code, bad.message);
    CHECK(home.changes_since(before).empty());
  }
  check(run(home, {"sweep", "none.yaml"}), 66, "none.yaml");
  check(run(home, {"sweep"}), 64, "FILE is required");
  write_sweep(home, "s", "axes: {run.seed: [1, 2]}\n");
  check(run(home, {"sweep", "s.yaml", "--point", "1"}), 64, "points.json does not exist; start the sweep first");
  check(run(home, {"sweep", "s.yaml", "--point", "2"}), 64, "--point: 2 is not a point of the sweep; allowed integer from 0 to 1");
  check(run(home, {"sweep", "s.yaml", "--point", "1", "--dry-run"}), 64, "--dry-run excludes --point");
  write_file(home / "bad.yaml", "base: run.yaml\nwhere: {place: slurm}\naxes: {model.layers: [1]}");
  check(shell(home, "PATH=/nowhere $T sweep bad.yaml"), 64, "bad.yaml:2:16 where.place=slurm: sbatch was not found in PATH");
  CHECK_FALSE(fs::exists(home / "runs"));
  check(run_under_mpirun(home, 1, {"sweep", "s.yaml"}), 64, "started as a rank by mpirun or srun");
  CHECK_FALSE(fs::exists(home / "s"));
}

TEST_CASE("sweep: names and values with quotes and newlines harm nothing") {
  TemporaryDirectory home;
  prepare_sweep(home);
  const std::string odd = "it's $(touch hacked) \"x\"";
  fs::copy(home / "train", home / odd, fs::copy_options::recursive);
  write_file(home / "my\nsweep's.yaml",
             "base: run.yaml\naxes: {data.train: [[train], [\"it's $(touch hacked) \\\"x\\\"\"]], model.layers: [1]}\nset: {run.seed: 2}\n");
  const Outcome outcome = must(home, {"sweep", "my\nsweep's.yaml"});
  CHECK(says(outcome, "2 of 2 points done"));
  CHECK_FALSE(fs::exists(home / "hacked"));
  CHECK(names_in(home / "runs") == std::set<std::string>{"my_sweep's"});
  CHECK(names_in(home / "runs/my_sweep's/points") ==
        std::set<std::string>{"000-train=_train_,layers=1", "001-train=__it_s___touch_hacked____x____,layers=1"});
  must(home, {"train", "runs/my_sweep's/best.yaml"});
}

TEST_CASE("sweep: an array job runs one point a task, and the sweep collects them") {
  TemporaryDirectory home;
  prepare_sweep(home);
  fs::create_directory(home / "bin");
  write_file(home / "bin/sbatch", "#!/bin/sh\nexit 1\n");
  fs::permissions(home / "bin/sbatch", fs::perms::owner_all);
  write_sweep(home, "s", "axes: {run.seed: [1, 2, 3]}\nwhere: {place: slurm, at_once: 2}\n");
  const Outcome begun = shell(home, "PATH=$PWD/bin:$PATH $T sweep s.yaml");
  check_error(begun, 0, "submit the other points by: sbatch '" + (home / "s/array.sbatch").string() + "'");
  CHECK_THAT(read_file(home / "s/array.sbatch"), Contains("#SBATCH --array=0-2%2\n"));
  CHECK_FALSE(fs::exists(home / "s/points"));
  // As Slurm starts the tasks: all at once.
  const Outcome tasks =
      shell(home, "for i in 2 0; do SLURM_ARRAY_TASK_ID=$i bash s/array.sbatch & pids=\"$pids $!\"; done; for p in $pids; do wait $p || exit; done");
  INFO(tasks.err);
  CHECK(tasks.code == 0);
  CHECK(losses(home / "s/points/000-seed=1", kPointSteps).size() == kPointSteps);
  CHECK(losses(home / "s/points/002-seed=3", kPointSteps).size() == kPointSteps);
  const Outcome collected = shell(home, "PATH=$PWD/bin:$PATH $T sweep s.yaml");
  CHECK(says(collected, "2 of 3 points done"));
  CHECK_THAT(read_file(home / "s/array.sbatch"), Contains("#SBATCH --array=1%2\n"));
  must(home, {"sweep", "s.yaml", "--point", "1"});
  CHECK(says(shell(home, "PATH=$PWD/bin:$PATH $T sweep s.yaml"), "3 of 3 points done"));
  must(home, {"sweep", "s.yaml", "--point", "1"});  // done: starts nothing
  check_starts(home / "s", 3, 0, 3);
}

TEST_CASE("sweep: the ranks of points die with the sweep, and the next job resumes them") {
  TemporaryDirectory home;
  prepare_sweep(home);
  write_sweep(home, "s",
              "set: {parallel.data: 2, training.steps: 100, checkpoint.every: 10, training.evaluate.every: 0, run.seed: 3}\n"
              "axes: {training.optimizer.learning_rate: [0.01]}\n");
  const fs::path point = home / "s/points/000-learning_rate=0.01";
  {
    Process sweep({kBinary, "sweep", "s.yaml"}, home.path());
    REQUIRE(holds_within(40, [&] { return fs::exists(point / "checkpoints/latest"); }));
    CHECK(processes_with((home / "s/jobs").string()).size() >= 4);  // trireme, mpirun and two ranks
    sweep.signal(SIGKILL);
    sweep.wait();
  }
  must(home, {"sweep", "s.yaml"});  // at once, while ranks may still be ending
  CHECK(losses(point, 100).size() == 100);
  CHECK(holds_within(10, [&] { return processes_with((home / "s/jobs").string()).empty(); }));
  must(home, Arguments{"train", "s/best.yaml"});
  CHECK(fingerprint_of(home / "runs/s-best", 100) == fingerprint_of(point, 100));
}

}  // namespace trireme::test
