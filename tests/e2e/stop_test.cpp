// Runs that are asked to stop, and runs that are killed.
#include <csignal>
#include <fstream>
#include <thread>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kTrain = Arguments{kBinary, "train", "run.yaml"} + sets({"training.steps=400", "training.evaluate.every=0", "data.validation=[]"});

/// The step of the newest checkpoint.
size_t saved_step(const fs::path& run_directory) {
  return std::stoul(fs::read_symlink(run_directory / "checkpoints/latest").string().substr(std::string("step-").size()));
}

void check_stops(const Arguments& command, const TemporaryDirectory& directory, const std::string& run, int signal) {
  CAPTURE(run, signal);
  const Arguments here = command + sets({"run.directory=" + run, "checkpoint.every=0"});
  Process process(here, directory.path());
  REQUIRE(process.wait_for("step 3/"));
  process.signal(signal);
  const Outcome stopped = process.wait();
  INFO(stopped.err);
  CHECK(stopped.code == 75);
  CHECK(stopped.err.find("stopped on request after step ") != std::string::npos);
  CHECK(stopped.err.find("---") == std::string::npos);  // nothing of mpirun's
  const size_t step = saved_step(directory / run);
  REQUIRE(step < 400);
  losses(directory / run, step);
  const Outcome resumed = Process(here + Arguments{"--max-steps", std::to_string(step + 2)}, directory.path()).wait();
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(resumed.err.find("resuming from " + run + "/checkpoints/step-") != std::string::npos);
  losses(directory / run, step + 2);
}

TEST_CASE("stop: SIGTERM, SIGINT and SIGUSR1 to the launcher save the step and end with 75") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments ranks = kTrain + layout(2, 1, 2, 3);
  check_stops(ranks, directory, "terminated", SIGTERM);
  check_stops(ranks, directory, "interrupted", SIGINT);
  check_stops(ranks, directory, "requeued", SIGUSR1);
}

TEST_CASE("stop: a run of one rank") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments slow = kTrain + sets({"training.sequence_length=128", "training.global_batch_size=64"});  // so that a signal comes in time
  check_stops(slow, directory, "requeued", SIGUSR1);
  check_stops(slow, directory, "terminated", SIGTERM);
}

TEST_CASE("stop: after kill -9 of the launcher the ranks go, and the run resumes with every step once") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string run = directory.path().string() + "/run";  // in the ranks' command lines, to find them by
  const Arguments command = kTrain + layout(1, 2, 2, 2) + sets({"run.directory=" + run});
  Process process(command, directory.path());
  REQUIRE(process.wait_for("step 9/"));
  REQUIRE(processes_with(run).size() >= 6);  // the launcher, mpirun, four ranks
  process.signal(SIGKILL);
  const auto begin = std::chrono::steady_clock::now();
  CHECK(process.wait().code == 128 + SIGKILL);
  while (!processes_with(run).empty() && std::chrono::steady_clock::now() - begin < std::chrono::seconds(10))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  CHECK(processes_with(run).empty());

  const size_t saved = saved_step(run);
  REQUIRE(saved >= 2);
  std::ofstream(run + "/metrics.jsonl", std::ios::app) << "{\"step\":" << saved + 1 << ",\"loss\":5.0";  // torn in the middle of a write
  const size_t until = saved + 3;
  const Outcome resumed = Process(command + Arguments{"--max-steps", std::to_string(until)}, directory.path()).wait();
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  const std::vector<double> after = losses(run, until);
  const Outcome whole =
      Process(kTrain + layout(1, 2, 2, 2) + sets({"run.directory=whole"}) + Arguments{"--max-steps", std::to_string(until)}, directory.path()).wait();
  REQUIRE(whole.code == 0);
  CHECK(losses(directory / "whole", until) == after);
}

}  // namespace
}  // namespace trireme::test
