// Failed jobs that are restarted by their launcher.
#include <csignal>
#include <iostream>

#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// The step lines of metrics.jsonl, without timings.
std::vector<nlohmann::json> steps_of(const fs::path& run) {
  std::vector<nlohmann::json> steps;
  for (nlohmann::json line : metrics(run)) {
    if (!line.contains("loss")) continue;
    for (const char* timing : {"step_seconds", "tokens_per_second", "model_tflops", "tflops", "time"}) line.erase(timing);
    steps.push_back(line);
  }
  return steps;
}

/// Kills `rank` once the job is past `step`; returns the seconds until the first new step is done.
double kill_and_recover(LiveJob& job, size_t ranks, int rank, size_t step) {
  REQUIRE(job.wait_for_step(step));
  const size_t restarts = count(job.err(), "restart ");
  const pid_t victim = job.ranks(ranks).at(rank);
  const auto begin = std::chrono::steady_clock::now();
  ::kill(victim, SIGKILL);
  REQUIRE(job.wait_for_error(" died", 10) >= 0);
  const size_t before = job.last_step();
  REQUIRE(job.wait_until([&] { return count(job.err(), "restart ") > restarts; }));
  REQUIRE(job.wait_for_step(before + 1));
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

struct Recovery {
  const char* name;
  Arguments layout;
  size_t world;
  int victim;
  size_t steps;
  size_t every;  ///< steps between saves; the rank is killed one and a half of them into the run
};

/// Returns the seconds from the kill to the first new step.
double check_recovery(const Recovery& is) {
  CAPTURE(is.name);
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command =
      kNoEvaluation + is.layout + sets({"training.steps=" + std::to_string(is.steps), "checkpoint.every=" + std::to_string(is.every)});
  LiveJob job(directory, "restarted", command + Arguments{"--restarts", "2", "--resume", "never"});
  const double seconds = kill_and_recover(job, is.world, is.victim, is.every + is.every / 2);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(count(outcome.err, "restart 1 of 2, from step-") == 1);
  CHECK(count(outcome.err, "resuming from ") == 1);
  LiveJob whole(directory, "whole", command);
  CHECK(whole.wait().code == 0);
  CHECK(steps_of(directory / "restarted") == steps_of(directory / "whole"));
  losses(directory / "restarted", is.steps);
  std::cout << is.name << ": " << seconds << " s from the kill of rank " << is.victim << " to the first new step\n";
  return seconds;
}

}  // namespace

TEST_CASE("restart: a job that loses a rank resumes from its newest checkpoint with bit-identical results") {
  check_recovery({"four ranks", layout(2, 1, 2, 2), 4, 2, 100, 20});
}

TEST_CASE("restart: eight ranks recover within five seconds", "[slow]") {
  const double seconds = check_recovery({"eight ranks", layout(2, 2, 2, 1), 8, 5, 100, 20});
  CHECK(seconds < 5);
}

TEST_CASE("restart: a run of one rank") { check_recovery({"one rank", layout(1, 1, 1, 0), 1, 0, 750, 150}); }

TEST_CASE("restart: gives up when the same step fails twice") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command =
      kNoEvaluation + layout(1, 2, 2, 1) + sets({"training.steps=100000", "checkpoint.every=5", "checkpoint.asynchronous=false"});
  LiveJob job(directory, "run", command + Arguments{"--restarts=5"}, misbehaviour(0, "abort", directory / "run/metrics.jsonl", "{\"step\":17,"));
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 70);
  CHECK(count(outcome.err, "rank 0 (") == 2);
  CHECK(count(outcome.err, "restart 1 of 5, from step-00000015") == 1);
  CHECK(count(outcome.err, "\nrestart ") == 1);
  // Step 17 is done, and the rank dies before it can begin the next.
  CHECK(outcome.err.find("giving up: step 18 has failed twice in a row, with no new checkpoint in between\n") != std::string::npos);
  CHECK(job.wait_until_gone(5) >= 0);
}

TEST_CASE("restart: a stop request between two attempts ends the run with exit code 75") {
  TemporaryDirectory directory;
  prepare_run(directory);
  LiveJob job(directory, "run", kNoEvaluation + layout(1, 1, 2, 1) + sets({"training.steps=1000000", "checkpoint.every=0", "resilience.restarts=3"}));
  REQUIRE(job.wait_for_step(5));
  ::kill(job.ranks(2).at(1), SIGKILL);
  REQUIRE(job.wait_for_error("restart 1 of 3, from the start\n", 10) >= 0);
  // The job restarts from step 0, so the second failure must be at a different, much later step.
  const size_t first = job.last_step();
  REQUIRE(job.wait_until([&] { return job.last_step() < first; }));
  REQUIRE(job.wait_for_step(first + 20));
  ::kill(job.ranks(2).at(1), SIGKILL);
  REQUIRE(job.wait_for_error("restart 2 of 3 in 1 s", 10) >= 0);
  job.signal(SIGTERM);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 75);
  CHECK(outcome.err.find("stopped on request before the restart") != std::string::npos);
}

TEST_CASE("restart: a program file that was removed meanwhile is named") {
  TemporaryDirectory directory;
  prepare_run(directory);
  fs::copy_file(kBinary, directory / "program");
  write_file(directory / "mpirun", "#!/bin/sh\nrm program\nexit 1\n");
  fs::permissions(directory / "mpirun", fs::perms::owner_all);
  const Arguments command =
      Arguments{"env", "PATH=" + directory.path().string() + ":/usr/bin:/bin", "./program", "train", "run.yaml", "--restarts=3"};
  const Outcome outcome = Process(command + layout(1, 1, 2, 0), directory.path()).wait();
  INFO(outcome.err);
  CHECK(outcome.code == 66);
  CHECK(outcome.err.find("the program file was removed or replaced while it ran (") != std::string::npos);
}

TEST_CASE("restart: refused if another launcher started the ranks") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  const Outcome option = run_under_mpirun(directory, 2, Arguments{"train", "run.yaml", "--restarts", "1"} + layout(1, 1, 2, 0));
  CHECK(option.code == 64);
  CHECK(option.err.find("--restarts: the ranks were started by mpirun or srun") != std::string::npos);
  const Outcome configured = run_under_mpirun(directory, 2, Arguments{"train", "run.yaml"} + layout(1, 1, 2, 0) + sets({"resilience.restarts=1"}));
  CHECK(configured.code == 64);
  CHECK(configured.err.find("resilience.restarts: the ranks were started by mpirun or srun") != std::string::npos);
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("restart: after kill -9 of all processes the next start succeeds immediately") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kNoEvaluation + layout(2, 1, 2, 3) + sets({"training.steps=100000", "checkpoint.every=10"});
  const std::string run = (directory / "run").string();
  {
    LiveJob job(directory, "run", command);
    REQUIRE(job.wait_for_step(25));
    for (pid_t process : processes_with(run)) ::kill(process, SIGKILL);
    CHECK(job.wait().code == 128 + SIGKILL);
    CHECK(job.wait_until_gone(5) >= 0);
  }
  LiveJob again(directory, "run", command + Arguments{"--max-steps", "60"});
  const Outcome outcome = again.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(outcome.err.find("resuming from ") != std::string::npos);
  CHECK(outcome.err.find("waiting") == std::string::npos);
  losses(run, 60);
}

}  // namespace trireme::test
