// Ranks, mpirun and launchers that die, stop or hang are detected and named, and no process is left behind.
#include <csignal>
#include <iostream>
#include <regex>
#include <thread>

#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Runs until it is stopped.
const Arguments kEndless = sets({"training.steps=1000000", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"});
constexpr int kInternalError = 70;

std::string named(int rank) { return "rank " + std::to_string(rank) + " ("; }

/// Checks that standard error has no output of mpirun, and the verdict once.
void check_words(const std::string& err, int rank) {
  CHECK(err.find("step ") != std::string::npos);
  for (const char* noise : {"mpirun", "Primary job", "-----", "giving up"}) CHECK(err.find(noise) == std::string::npos);
  const size_t first = err.find(named(rank));
  REQUIRE(first != std::string::npos);
  CHECK(err.find(named(rank), first + 1) == std::string::npos);
}

struct Death {
  const char* deed;  ///< "kill": SIGKILL from outside
  int rank;
  const char* end = "";  ///< as reported by mpirun
};

void check_death(const TemporaryDirectory& directory, const Death& is, const Arguments& ranks, size_t count) {
  CAPTURE(is.deed, is.rank);
  const fs::path trigger = directory / "trigger";
  fs::remove(trigger);
  LiveJob job(directory, std::string(is.deed) + std::to_string(is.rank), kEndless + ranks, misbehaviour(is.rank, is.deed, trigger));
  REQUIRE(job.wait_for_step(30));
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // the hub has received a report of a step
  if (is.deed == std::string("kill"))
    ::kill(job.ranks(count).at(is.rank), SIGKILL);
  else
    write_file(trigger, "");
  const double told = job.wait_for_error(named(is.rank), 30), gone = job.wait_until_gone(30);
  INFO(job.err());
  CAPTURE(told, gone);
  CHECK(told >= 0);
  CHECK(told < 2);
  CHECK(gone >= 0);
  CHECK(told + gone < 10);
  const Outcome outcome = job.wait();
  CHECK(outcome.code == kInternalError);
  // If all die at once, mpirun knows which was the first; the others are not blamed.
  CHECK(outcome.err.find("has died in step ") != std::string::npos);
  CHECK(outcome.err.find(" have died") == std::string::npos);
  const std::string first = "rank " + std::to_string(is.rank) + " ended first, " + is.end;
  CHECK(outcome.err.find(first) != std::string::npos);
  check_words(outcome.err, is.rank);
  std::cout << is.deed << " of rank " << is.rank << " of " << count << ": named after " << told << " s, all gone after " << told + gone << " s\n";
}

/// `hang_seconds`: as configured. Detection may take some seconds longer on a busy machine.
void check_hang(const TemporaryDirectory& directory, const Death& is, double hang_seconds) {
  CAPTURE(is.deed, is.rank, hang_seconds);
  const fs::path trigger = directory / "trigger";
  fs::remove(trigger);
  LiveJob job(directory, std::string(is.deed) + std::to_string(is.rank),
              kEndless + layout(2, 1, 2, 1) + sets({"resilience.hang_seconds=" + std::to_string(hang_seconds)}),
              misbehaviour(is.rank, is.deed, trigger));
  REQUIRE(job.wait_for_step(30));                               // enough steps for a median
  std::this_thread::sleep_for(std::chrono::milliseconds(600));  // and the hub has received a report
  if (is.deed == std::string("stop"))
    ::kill(job.ranks(4).at(is.rank), SIGSTOP);
  else
    write_file(trigger, "");
  const double told = job.wait_for_error(named(is.rank), hang_seconds + 30), gone = job.wait_until_gone(30);
  INFO(job.err());
  CAPTURE(told, gone);
  CHECK(told > hang_seconds / 2);
  CHECK(told < hang_seconds + 5);
  CHECK(gone >= 0);
  CHECK(gone < 10);
  const Outcome outcome = job.wait();
  CHECK(outcome.code == kInternalError);
  check_words(outcome.err, is.rank);
  std::cout << is.deed << " of rank " << is.rank << ", limit " << hang_seconds << " s: named after " << told << " s, all gone after " << told + gone
            << " s\n";
}

/// Calls `disturb` in the middle of a run, which must continue without a verdict. Thousands of its steps may have one that stands out, which is no verdict.
template <class F>
void check_no_alarm(const TemporaryDirectory& directory, const std::string& run, const Arguments& arguments, F&& disturb) {
  CAPTURE(run);
  LiveJob job(directory, run, kEndless + sets({"observe.anomalies.z=1000"}) + layout(2, 1, 2, 1) + arguments);
  REQUIRE(job.wait_for_step(30));
  disturb(job);
  const size_t step = job.last_step();
  CHECK(job.wait_for_step(step + 20));
  job.signal(SIGTERM);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 75);
  CHECK_FALSE(std::regex_search(outcome.err, std::regex("rank [0-9]")));  // no rank is named
}

void stop_for(pid_t process, std::chrono::milliseconds time) {
  ::kill(process, SIGSTOP);
  std::this_thread::sleep_for(time);
  ::kill(process, SIGCONT);
}

}  // namespace

TEST_CASE("death: a rank that is killed, aborts or exits is named within two seconds, and all ranks end") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const Death& is : {Death{"kill", 0, "by signal 9"}, Death{"abort", 3, "by signal 6"}, Death{"exit0", 0, "without reporting"},
                          Death{"exit0", 2, "without reporting"}})
    check_death(directory, is, layout(2, 1, 2, 1), 4);
}

TEST_CASE("death: each kind, of the first and of another one of eight ranks", "[slow]") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (int rank : {0, 5})
    for (const Death& is : {Death{"kill", rank, "by signal 9"}, Death{"abort", rank, "by signal 6"}, Death{"exit0", rank, "without reporting"}})
      check_death(directory, is, layout(2, 2, 2, 1), 8);
}

TEST_CASE("death: a stopped rank, and one that hangs while its other threads run, are named") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_hang(directory, {"stop", 1}, 2);
  check_hang(directory, {"hang", 2}, 2);
}

TEST_CASE("death: a stopped mpirun is named as the cause, and none of its ranks") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // Two ranks, as their steps are short: the ranks block once the lines of their steps have filled the pipe to mpirun.
  LiveJob job(directory, "run", kEndless + layout(1, 1, 2, 1) + sets({"resilience.hang_seconds=2"}));
  REQUIRE(job.wait_for_step(30));
  const pid_t mpirun = job.mpirun();
  ::kill(mpirun, SIGSTOP);
  CHECK(job.wait_for_error("mpirun (process " + std::to_string(mpirun) + ") is stopped", 40) >= 0);
  CHECK(job.wait_until_gone(30) >= 0);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  CHECK(outcome.code == kInternalError);
  CHECK_FALSE(std::regex_search(outcome.err, std::regex("rank [0-9]+ \\(")));
}

TEST_CASE("death: stopped and hung ranks at the default limit", "[slow]") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const char* deed : {"stop", "hang", "spin"})
    for (int rank : {0, 3}) check_hang(directory, {deed, rank}, 10);
}

TEST_CASE("death: no verdict after a stall of three seconds") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_no_alarm(directory, "stalled", {}, [](const LiveJob& job) { stop_for(job.ranks(4).at(1), std::chrono::seconds(3)); });
}

TEST_CASE("death: no verdict if the launcher is stopped for longer than the limit") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_no_alarm(directory, "suspended", sets({"resilience.hang_seconds=2"}), [](const LiveJob& job) {
    job.signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(3500));
    job.signal(SIGCONT);
  });
}

TEST_CASE("death: no verdict if the launcher is stopped for twelve seconds", "[slow]") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_no_alarm(directory, "suspended", {}, [](const LiveJob& job) {
    job.signal(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::seconds(12));
    job.signal(SIGCONT);
  });
}

TEST_CASE("death: after kill -9 of mpirun, or of a launcher whose mpirun hangs, all processes end") {
  TemporaryDirectory directory;
  prepare_run(directory);
  {
    LiveJob job(directory, "without-mpirun", kEndless + layout(2, 1, 2, 1));
    REQUIRE(job.wait_for_step(3));
    ::kill(job.mpirun(), SIGKILL);
    const double gone = job.wait_until_gone(30);
    INFO(job.err());
    CAPTURE(gone);
    CHECK(gone >= 0);
    CHECK(gone < 10);
    const Outcome outcome = job.wait();
    CHECK(outcome.code == kInternalError);
    CHECK(outcome.err.find("mpirun was killed by signal 9") != std::string::npos);
  }
  {
    LiveJob job(directory, "without-launcher", kEndless + layout(2, 1, 2, 1));
    REQUIRE(job.wait_for_step(3));
    ::kill(job.mpirun(), SIGSTOP);  // like a deadlocked mpirun
    job.signal(SIGKILL);
    const double gone = job.wait_until_gone(30);
    CAPTURE(gone);
    CHECK(gone >= 0);
    CHECK(gone < 10);
    CHECK(job.wait().code == 128 + SIGKILL);
  }
}

}  // namespace trireme::test
