// Where the time of a run goes: failures, slow starts and slow saves are injected, and must appear under their cause. checkpoint.every auto.
#include <cmath>
#include <csignal>
#include <iostream>
#include <sstream>

#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kTwoRanks = kNoEvaluation + layout(1, 1, 2, 1) + sets({"resilience.hang_seconds=4", "checkpoint.asynchronous=false"});

/// Every fsync takes some milliseconds longer.
Arguments slow_disk(int milliseconds) { return {"LD_PRELOAD=" + shim("slow"), "TRIREME_SHIM_FSYNC_MS=" + std::to_string(milliseconds)}; }

/// An mpirun that takes a second longer to start, in the search path.
Arguments slow_start(const TemporaryDirectory& directory) {
  fs::create_directories(directory / "slow");
  write_file(directory / "slow/mpirun", "#!/bin/sh\nsleep 1\nPATH=${PATH#*:}\nexec mpirun \"$@\"\n");
  fs::permissions(directory / "slow/mpirun", fs::perms::owner_all);
  return {"PATH=" + (directory / "slow").string() + ":" + std::getenv("PATH")};
}

nlohmann::json goodput_json(const TemporaryDirectory& directory, const std::string& run_directory) {
  return nlohmann::json::parse(must(directory, {"goodput", run_directory, "--json"}).out);
}

/// Ends or stops rank 1, and waits until the next job has trained.
void fail_once(LiveJob& job, int signal) {
  const size_t restarts = count(job.err(), "restart "), before = job.last_step();
  ::kill(job.ranks(2).at(1), signal);
  REQUIRE(job.wait_until([&] { return count(job.err(), "restart ") > restarts; }));
  REQUIRE(job.wait_for_step(before + 30));
}

/// A run that fails `failures` times, every third time by a rank that is stopped, and is then stopped on request.
void check_failures(int failures) {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto begin = std::chrono::steady_clock::now();
  LiveJob job(directory, "run", kTwoRanks + sets({"training.steps=1000000", "checkpoint.every=20"}) + Arguments{"--restarts", "100"},
              slow_start(directory) + slow_disk(20), kBinary, std::chrono::seconds(60 + 30 * failures));
  REQUIRE(job.wait_for_step(30));
  int hangs = 0;
  for (int i = 0; i < failures; ++i) {
    const bool hang = i % 3 == 1;
    hangs += hang ? 1 : 0;
    fail_once(job, hang ? SIGSTOP : SIGKILL);
  }
  job.signal(SIGTERM);
  const Outcome outcome = job.wait();
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  INFO(outcome.err);
  REQUIRE(outcome.code == 75);
  const nlohmann::json found = goodput_json(directory, "run");
  INFO(found.dump(2));
  std::map<std::string, double> seconds;
  double sum = 0;
  for (const auto& [cause, value] : found["seconds"].items()) {
    seconds[cause] = value.get<double>();
    CHECK(seconds[cause] >= 0);
    sum += seconds[cause];
  }
  std::cout << failures << " failures: " << sum << " s accounted, " << wall << " s on the test's clock\n" << must(directory, {"goodput", "run"}).out;
  CHECK(sum == Approx(found["wall_seconds"].get<double>()).epsilon(1e-6));
  CHECK(sum == Approx(wall).epsilon(0.01));
  CHECK(found["failures"] == failures);
  CHECK(found["jobs"] == failures + 1);
  // What was injected, at least. Four seconds for each hang; one for each start; each save has four calls or more that take 20 ms longer.
  CHECK(seconds["detection"] >= hangs * 3.5);
  CHECK(seconds["restart"] >= failures * 1.0);
  CHECK(seconds["start-up"] >= 1.0);
  CHECK(seconds["saves"] >= found["saves"].get<double>() * 0.08);
  CHECK(found["saves"] >= failures);
  CHECK(seconds["replayed steps"] > 0);
  CHECK(found["replayed_steps"] > 0);
  CHECK(seconds["load"] > 0);
  CHECK(seconds["waiting for nodes"] == 0);
  CHECK(seconds["not running"] == 0);
  CHECK(seconds["evaluation"] == 0);
  CHECK(seconds["other"] <= 0.05 * sum);
  const nlohmann::json& forecast = found["forecast"];
  CHECK(forecast["mean_time_between_failures_from"] == "measured");
  // An expectation over failures at random moments, which these are not.
  for (const char* share : {"measured_share", "expected_share"}) {
    CHECK(forecast[share] > 0);
    CHECK(forecast[share] < 1);
  }
}

TEST_CASE("goodput: three failures, slow saves and slow starts are accounted under their causes, to the wall time within 1 %") { check_failures(3); }

TEST_CASE("goodput: twenty failures are accounted within 1 %", "[slow]") { check_failures(20); }

TEST_CASE("goodput: jobs that were started by hand, and one of one rank") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments one = kTrain + sets({"run.directory=run", "training.steps=60", "checkpoint.every=10"});
  const auto begin = std::chrono::steady_clock::now();
  must(directory, one + Arguments{"--max-steps", "30"});
  const auto stopped = std::chrono::steady_clock::now();
  must(shell(directory, "sleep 1.5"));
  const double pause = std::chrono::duration<double>(std::chrono::steady_clock::now() - stopped).count();
  must(directory, one);
  const double wall = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  const nlohmann::json found = goodput_json(directory, "run");
  INFO(found.dump(2));
  CHECK(found["jobs"] == 2);
  CHECK(found["failures"] == 0);
  CHECK(found["steps"] == 60);
  CHECK(found["seconds"]["not running"].get<double>() >= pause - 0.1);
  CHECK(found["seconds"]["restart"] == 0);
  CHECK(found["seconds"]["detection"] == 0);
  CHECK(found["seconds"]["replayed steps"] == 0);
  CHECK(found["seconds"]["evaluation"].get<double>() > 0);
  CHECK(found["wall_seconds"].get<double>() <= wall);
  CHECK(found["wall_seconds"].get<double>() >= wall - 1.0);
  // A finished run is not changed.
  const auto before = directory.listing();
  must(directory, one);
  CHECK(directory.changes_since(before).empty());
  must(directory, one + layout(1, 1, 2, 1));
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("goodput: bad input") {
  TemporaryDirectory directory;
  check_error(run(directory, {"goodput", "missing"}), 66, "missing: does not exist; expected a run directory");
  fs::create_directories(directory / "empty");
  check_error(run(directory, {"goodput", "empty"}), 65, "empty: not a run: has neither metrics.jsonl nor config.yaml");
  write_file(directory / "empty/metrics.jsonl", "");
  check_error(run(directory, {"goodput", "empty"}), 65, "no step with its time is recorded yet");
  check_error(run(directory, {"goodput"}), 64, "RUN is required");
}

/// The steps of the checkpoint events of a run, of which none is lost.
std::vector<int64_t> saved_steps(const fs::path& run_directory) {
  std::vector<int64_t> steps;
  for (const std::string& name : checkpoint_names(run_directory)) steps.push_back(std::stoll(name.substr(5)));
  return steps;
}

TEST_CASE("checkpoint.every auto: saves where it says, changes no bit, and continues after a kill") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTwoRanks + sets({"training.steps=300", "training.global_batch_size=64", "training.micro_batch_size=8"});
  const Arguments automatic = command + sets({"checkpoint.every=auto", "checkpoint.keep=1000", "resilience.mean_time_between_failures=0.5"});
  LiveJob job(directory, "run", automatic + Arguments{"--restarts", "2"}, slow_disk(5));
  REQUIRE(job.wait_for_step(60));
  ::kill(job.ranks(2).at(1), SIGKILL);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.err.find("checkpoint.every: auto is ") != std::string::npos);
  CHECK(outcome.err.find("a failure is expected every 500 ms (as given)") != std::string::npos);

  // Each checkpoint follows the one before by the interval that was chosen after that one, in this job or an earlier one.
  std::vector<nlohmann::json> records;
  std::istringstream lines(read_file(directory / "run/jobs.jsonl"));
  for (std::string line; std::getline(lines, line);) records.push_back(nlohmann::json::parse(line));
  int64_t saved = 0, interval = 10, chosen_at = 0, starts = 0, intervals = 0;
  for (const nlohmann::json& record : records) {
    INFO(record.dump());
    const std::string event = record["event"];
    if (event == "start") {
      ++starts;
      saved = record["step"];
      chosen_at = 0;
    } else if (event == "save") {
      CHECK((record["step"] == std::max(saved + interval, chosen_at) || record["step"] == 300));
      saved = record["step"];
    } else if (event == "interval") {
      ++intervals;
      interval = record["steps"];
      chosen_at = record["step"];
      CHECK(interval >= 1);
      CHECK(record["save_seconds"] > 0.02);
      CHECK(record["mean_time_between_failures"] == 0.5);
    }
  }
  CHECK(starts == 2);
  CHECK(intervals >= 3);
  const std::vector<int64_t> steps = saved_steps(directory / "run");
  CHECK(steps.front() == 10);
  CHECK(steps.back() == 300);
  CHECK(steps.size() >= 4);
  CHECK(std::ranges::count(records, "checkpoint_interval", [](const nlohmann::json& one) { return one["event"].get<std::string>(); }) == 0);
  size_t told = 0;
  for (const nlohmann::json& line : metrics(directory / "run"))
    if (line.value("event", "") == "checkpoint_interval") told += line.contains("step_seconds") ? 1 : 0;
  CHECK(told >= 1);

  LiveJob whole(directory, "whole", command + sets({"checkpoint.every=0"}));
  CHECK(whole.wait().code == 0);
  CHECK(losses(directory / "run", 300) == losses(directory / "whole", 300));
  CHECK_THAT(must(directory, {"goodput", "run"}).out, Catch::Matchers::Contains("checkpoint.every auto: "));
}

TEST_CASE("checkpoint.every auto: milestones and the best checkpoints are saved besides") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + sets({"run.directory=run", "training.steps=60", "checkpoint.every=auto", "checkpoint.keep=1", "checkpoint.keep_every=25",
                                 "checkpoint.keep_best=60", "training.evaluate.every=20"}));
  const std::set<std::string> names = checkpoint_names(directory / "run");
  for (const char* name : {"step-00000020", "step-00000025", "step-00000040", "step-00000050", "step-00000060"}) CHECK(names.contains(name));
  CHECK_FALSE(names.contains("step-00000010"));  // the first one, which measured, and is neither
}

}  // namespace
}  // namespace trireme::test
