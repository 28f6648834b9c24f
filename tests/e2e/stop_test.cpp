// Stop requests, and killed launchers.
#include <csignal>
#include <fstream>
#include <thread>
#include <utility>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kTrainInBackground =
    Arguments{kBinary, "train", "run.yaml"} + sets({"training.steps=400", "training.evaluate.every=0", "data.validation=[]"});

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
  CHECK(stopped.err.find("---") == std::string::npos);  // no output of mpirun
  const size_t step = saved_step(directory / run);
  REQUIRE(step < 400);
  losses(directory / run, step);
  const Outcome resumed = Process(here + Arguments{"--max-steps", std::to_string(step + 2)}, directory.path()).wait();
  INFO(resumed.err);
  CHECK(resumed.code == 0);
  CHECK(resumed.err.find("resuming from " + run + "/checkpoints/step-") != std::string::npos);
  losses(directory / run, step + 2);
}

TEST_CASE("stop: SIGTERM, SIGINT and SIGUSR1 to the launcher save the step and exit with 75") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments ranks = kTrainInBackground + layout(2, 1, 2, 3);
  check_stops(ranks, directory, "terminated", SIGTERM);
  check_stops(ranks, directory, "interrupted", SIGINT);
  check_stops(ranks, directory, "requeued", SIGUSR1);
}

TEST_CASE("stop: a run of one rank") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments slow =
      kTrainInBackground + sets({"training.sequence_length=128", "training.global_batch_size=64"});  // so that the signal arrives in time
  check_stops(slow, directory, "requeued", SIGUSR1);
  check_stops(slow, directory, "terminated", SIGTERM);
}

TEST_CASE("stop: after kill -9 of the launcher the ranks end, and the run resumes with every step once") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string run = directory.path().string() + "/run";  // appears in the ranks' command lines, to find their processes
  const Arguments command = kTrainInBackground + layout(1, 2, 2, 2) + sets({"run.directory=" + run});
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
  std::ofstream(run + "/metrics.jsonl", std::ios::app) << "{\"step\":" << saved + 1 << ",\"loss\":5.0";  // an incomplete line
  const size_t until = saved + 3;
  const Outcome resumed = Process(command + Arguments{"--max-steps", std::to_string(until)}, directory.path()).wait();
  INFO(resumed.err);
  REQUIRE(resumed.code == 0);
  const std::vector<double> after = losses(run, until);
  const Outcome whole =
      Process(kTrainInBackground + layout(1, 2, 2, 2) + sets({"run.directory=whole"}) + Arguments{"--max-steps", std::to_string(until)},
              directory.path())
          .wait();
  REQUIRE(whole.code == 0);
  CHECK(losses(directory / "whole", until) == after);
}

/// Steps of some tenths of a second, so that a signal arrives within one.
const Arguments kSlow = kTrainInBackground + sets({"training.sequence_length=128", "training.global_batch_size=128", "checkpoint.every=0"});

TEST_CASE("stop: a signal to every process of a job saves the step and exits with 75") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const int signal : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) {
    CAPTURE(signal);
    const std::string run = (directory / ("run" + std::to_string(signal))).string();  // appears in the ranks' command lines, to find their processes
    Process process(kTrainInBackground + layout(2, 1, 2, 3) + sets({"run.directory=" + run, "checkpoint.every=0"}), directory.path());
    REQUIRE(process.wait_for("step 3/"));
    const std::vector<pid_t> job = processes_with(run);
    REQUIRE(job.size() >= 6);  // the launcher, mpirun, four ranks
    // mpirun is ended by SIGHUP, so send that only to processes of trireme.
    for (const pid_t one : job)
      if (signal != SIGHUP || fs::read_symlink("/proc/" + std::to_string(one) + "/exe") == kBinary) ::kill(one, signal);
    const auto begin = std::chrono::steady_clock::now();
    const Outcome stopped = process.wait();
    INFO(stopped.err);
    CHECK(stopped.code == 75);
    CHECK(stopped.err.find("stopped on request after step ") != std::string::npos);
    for (const char* blame : {"has died", "ended first", "has not responded"}) CHECK(stopped.err.find(blame) == std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(10));
    losses(run, saved_step(run));
  }
}

TEST_CASE("stop: SIGHUP saves the step, but has no effect if it was ignored at the start") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_stops(kSlow, directory, "hangup", SIGHUP);
  Process process(Arguments{"nohup"} + kSlow + in("nohup") + sets({"training.steps=8"}), directory.path());
  REQUIRE(process.wait_for("step 2/"));
  process.signal(SIGHUP);
  CHECK(process.wait().code == 0);
}

TEST_CASE("stop: no effect during the last step") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const auto& [run, ranks] : {std::pair{"one", 1}, {"four", 2}}) {
    const Arguments whole = kSlow + in(run) + layout(ranks, 1, ranks, 0) + sets({"training.steps=2"});
    const Arguments part = kSlow + in(std::string(run) + "-part") + layout(ranks, 1, ranks, 0) + Arguments{"--max-steps", "2"};
    for (const Arguments& command : {whole, part}) {
      Outcome outcome;
      for (int tries = 0; tries < 5; ++tries) {
        fs::remove_all(directory / run);
        fs::remove_all(directory / (std::string(run) + "-part"));
        Process process(command, directory.path());
        REQUIRE(process.wait_for("step 1/"));
        std::this_thread::sleep_for(std::chrono::milliseconds(50 << tries));
        process.signal(SIGTERM);
        outcome = process.wait();
        if (outcome.err.find("stopped on request after step 1,") == std::string::npos) break;  // else the ranks had not begun step 2
      }
      INFO(outcome.err);
      CHECK(outcome.code == 0);
      CHECK(outcome.err.find("done: 2 of ") != std::string::npos);
    }
  }
}

template <class Condition>
void wait_until(const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!condition()) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
}

TEST_CASE("stop: during set-up of the ranks the job ends without waiting for them") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const std::string run = (directory / "run").string();
  Process process(kSlow + in(run) + layout(2, 1, 2, 0), directory.path());
  wait_until([&] { return processes_with(run).size() >= 3; });  // mpirun has been started
  const auto begin = std::chrono::steady_clock::now();
  process.signal(SIGTERM);
  const Outcome outcome = process.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 75);
  CHECK(outcome.err.find("stopped on request before the first step; rerun the same command ") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  CHECK(processes_with(run).empty());
}

TEST_CASE("stop: a second request ends a long step immediately") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const std::string run = "run" + std::to_string(ranks);
    Process process(
        kTrainInBackground + in(run) + layout(ranks, 1, 1, 0) + sets({"training.sequence_length=128", "training.global_batch_size=40000"}),
        directory.path());
    wait_until([&] { return fs::exists(directory / run / "metrics.jsonl"); });  // the first step comes next
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    process.signal(SIGTERM);
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    REQUIRE(process.running());
    process.signal(SIGTERM);
    const auto begin = std::chrono::steady_clock::now();
    const Outcome outcome = process.wait();
    INFO(outcome.err);
    CHECK(outcome.code == 70);
    CHECK(outcome.err.find("ended immediately by a second stop request; unsaved progress is lost\n") != std::string::npos);
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(5));
  }
}

TEST_CASE("stop: a run whose standard output or error has no reader continues, and stops on request") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto shell = [&](const std::string& script, const std::string& run, const Arguments& more) {
    Arguments command{"bash", "-c", script, "bash"};
    return Process(command + kSlow + in(run) + more, directory.path()).wait();
  };
  for (const int ranks : {1, 2}) {
    CAPTURE(ranks);
    const std::string name = std::to_string(ranks);
    const Arguments few = layout(ranks, 1, 1, 0) + sets({"training.steps=4", "training.global_batch_size=32"});  // steps need not be long
    CHECK(shell("set -o pipefail; \"$@\" | head -1 > /dev/null", "output" + name, few).code == 0);
    const std::string once_it_trains = "until grep -q loss error" + name + "/metrics.jsonl 2> /dev/null; do sleep 0.05; done; ";
    CHECK(shell("\"$@\" 2> >(head -1 > /dev/null) & " + once_it_trains + "kill -TERM $!; wait $!", "error" + name, layout(ranks, 1, 1, 0)).code ==
          75);
    CHECK(saved_step(directory / ("error" + name)) > 0);
    CHECK(shell("\"$@\" <&- >&- 2>&-", "closed" + name, few).code == 0);
    CHECK(losses(directory / ("closed" + name), 4).size() == 4);  // every line is a JSON object
    CHECK(read_file(directory / ("closed" + name) / "run.lock").find("step") == std::string::npos);
  }
}

TEST_CASE("stop: signals that the parent ignored or blocked, duplicated signals, and SIGXCPU") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments ranks = layout(2, 1, 1, 0);
  must(Process(Arguments{"env", "--ignore-signal=CHLD"} + kTrainInBackground + in("ignored") + ranks + sets({"training.steps=4"}), directory.path())
           .wait());
  const auto check_stop = [&](const Arguments& environment, const std::string& run, const std::vector<int>& signals) {
    CAPTURE(run);
    Process process(environment + kTrainInBackground + in(run) + ranks + sets({"checkpoint.every=0"}), directory.path());
    REQUIRE(process.wait_for("step 3/"));
    for (const int signal : signals) process.signal(signal);
    CHECK(process.wait().code == 75);
    CHECK(saved_step(directory / run) >= 3);
  };
  check_stop({"env", "--block-signal=USR1"}, "blocked", {SIGTERM});
  check_stop({"env"}, "twice", {SIGINT, SIGINT});
  check_stop({"env"}, "processor", {SIGXCPU});
}

}  // namespace
}  // namespace trireme::test
