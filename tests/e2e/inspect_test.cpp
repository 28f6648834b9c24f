// `trireme inspect` on runs whose ranks are killed, stopped, loop forever or leave out a collective; stacks and logs of the ranks.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <iostream>
#include <random>
#include <regex>
#include <thread>

#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Ranks = std::vector<int>;

const Arguments kEndless = sets({"training.steps=1000000", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"});
/// So that no verdict ends the job before it has been inspected.
const Arguments kPatient = sets({"resilience.hang_seconds=600"});
const Arguments kEight = layout(2, 2, 2, 1);

nlohmann::json inspect_json(const TemporaryDirectory& directory, const std::string& run, const Arguments& more = {}) {
  return nlohmann::json::parse(must(directory, Arguments{"inspect", run, "--json"} + more).out);
}

std::string log_of(const TemporaryDirectory& directory, const std::string& run, int rank) {
  return read_file(directory / run / "logs" / ("rank-000" + std::to_string(rank) + ".log"));
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool contains(const nlohmann::json& ranks, int rank) { return std::find(ranks.begin(), ranks.end(), rank) != ranks.end(); }

/// The program faulty_train in place of trireme.
Arguments fault(int rank, const std::string& deed, const std::string& group, const fs::path& trigger) {
  return {"FAULT_RANK=" + std::to_string(rank), "FAULT_DO=" + deed, "FAULT_GROUP=" + group, "FAULT_TRIGGER=" + trigger.string()};
}

/// True if every rank but `culprit` has not moved for half a second, so that nothing of the job runs any more.
bool stands(const nlohmann::json& inspection, int culprit) {
  for (const auto& rank : inspection["ranks"])
    if (rank["rank"] != culprit && (!rank.contains("still_seconds") || rank["still_seconds"] < 0.5)) return false;
  return true;
}

struct Trial {
  std::string deed;  ///< kill | stop | skip | spin
  int rank;
  std::string group = "tensor";  ///< skip and spin: whose operation is missing
};

/// mpirun kills the other ranks within milliseconds, often before one of them has to wait for the first. Then each operation in which ranks wait has no
/// member `rank`, or lacks another one, and the inspection lists the next operations of `rank`: one of the world, whose norm every step needs, and each
/// with all other members of its group.
bool nobody_waits_for(const nlohmann::json& inspection, int rank) {
  const auto& self = inspection["ranks"][static_cast<size_t>(rank)];
  if (!self.contains("never_entered")) return false;
  const bool of_world = std::ranges::any_of(
      self["never_entered"], [](const auto& next) { return next["group"] == "world" && next["others"].size() == 7 && next["number"] > 1; });
  return of_world && std::ranges::none_of(inspection["operations"], [&](const auto& operation) {
           return contains(operation["members"], rank) && operation["missing"].empty();
         });
}

/// What is wrong with an inspection that should name the rank of the trial, its action, and an operation that it is missing in; empty if nothing is.
/// `named`: whether there is such an operation.
std::string find_error(const nlohmann::json& inspection, const Trial& trial, bool& named) {
  const auto& self = inspection["ranks"][static_cast<size_t>(trial.rank)];
  const std::string expected = trial.deed == "kill" ? "dead" : trial.deed == "stop" ? "stopped" : "alive";
  if (self["process"] != expected) return "process " + self["process"].get<std::string>() + ", expected " + expected;
  if (self["step"] < 1 || self["action"].get<std::string>().empty()) return "step or action are missing";
  // mpirun kills the other ranks at once, so the verdict says which one was first.
  if (trial.deed == "kill" && (inspection["verdict"].is_null() || inspection["verdict"]["ranks"] != Ranks{trial.rank}))
    return "the verdict names other ranks";
  if (trial.deed == "spin" && !self["operation"].is_null()) return "it waits, and should compute";
  for (const auto& rank : inspection["ranks"])
    if (rank["rank"] != trial.rank && (rank["process"] == "stopped" || rank["process"] == "no black box")) return "another rank is accused";
  named = false;
  for (const auto& operation : inspection["operations"]) {
    // Whoever else is missing in an operation is itself waiting.
    for (const int missing : operation["missing"]) {
      const auto& other = inspection["ranks"][static_cast<size_t>(missing)];
      if (missing != trial.rank && trial.deed != "kill" && other["operation"].is_null())
        return "a rank that waits for nobody is missing in " + operation["operation"].get<std::string>();
    }
    const bool is_missing = contains(operation["missing"], trial.rank) || contains(operation["stuck"], trial.rank);
    const bool of_group = trial.deed == "kill" || trial.deed == "stop" || operation["group"] == trial.group;
    if (is_missing && of_group && !operation["waiting"].empty() && contains(operation["members"], trial.rank)) named = true;
  }
  return named || (trial.deed == "kill" && nobody_waits_for(inspection, trial.rank)) ? "" : "no operation has the rank missing";
}

/// One job on eight ranks, in which one goes wrong after `delay`. Returns whether an operation is named that the rank is missing in.
bool check_trial(const TemporaryDirectory& directory, const Trial& trial, const std::string& run, std::chrono::milliseconds delay) {
  CAPTURE(trial.deed, trial.rank, trial.group, delay.count());
  const fs::path trigger = directory / (run + "-trigger");
  const bool planted = trial.deed == "skip" || trial.deed == "spin";
  LiveJob job(directory, run, kEndless + kPatient + kEight, planted ? fault(trial.rank, trial.deed, trial.group, trigger) : Arguments{},
              planted ? faulty_train_program() : kBinary);
  if (!job.wait_for_step(3)) {
    std::string stacks;
    for (const auto& [rank, process] : job.ranks(8)) stacks += shell(directory, "$T inspect --process " + std::to_string(process)).out;
    FAIL("the job does not start: " << shell(directory, "$T inspect " + run).out << stacks);
  }
  std::this_thread::sleep_for(delay);
  const pid_t victim = job.ranks(8).at(trial.rank);
  if (planted) write_file(trigger, "");
  if (!planted) ::kill(victim, trial.deed == "kill" ? SIGKILL : SIGSTOP);
  nlohmann::json inspection;
  if (trial.deed == "kill") {
    CHECK(job.wait_until_gone(60) >= 0);
    inspection = inspect_json(directory, run);
  } else {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    do {
      std::this_thread::sleep_for(std::chrono::milliseconds(200));
      inspection = inspect_json(directory, run);
    } while (!stands(inspection, trial.rank) && std::chrono::steady_clock::now() < deadline);
  }
  const std::string text = must(directory, {"inspect", run}).out;
  INFO(text << inspection.dump(1));
  bool named = false;
  CHECK(find_error(inspection, trial, named) == "");
  CHECK(has(text, "\n  rank " + std::to_string(trial.rank) + " (host ") == named);
  CHECK(has(text, "\nrank " + std::to_string(trial.rank) + " (host ") == !named);  // died before others waited for it
  if (trial.deed == "kill") {
    CHECK(has(log_of(directory, run, trial.rank == 0 ? 1 : 0), "start of rank "));
  } else {
    if (trial.deed == "stop") ::kill(victim, SIGCONT);
    job.signal(SIGKILL);
    CHECK(job.wait_until_gone(60) >= 0);
  }
  job.wait();
  return named;
}

}  // namespace

TEST_CASE("inspect: names the rank that is killed, stopped, in an endless loop or missing in a collective, and the operation") {
  TemporaryDirectory directory;
  prepare_run(directory);
  check_trial(directory, {"kill", 5}, "kill", std::chrono::milliseconds(0));
  check_trial(directory, {"stop", 2}, "stop", std::chrono::milliseconds(0));
  check_trial(directory, {"spin", 7, "shard"}, "spin", std::chrono::milliseconds(0));
  check_trial(directory, {"skip", 0, "tensor"}, "skip", std::chrono::milliseconds(0));
}

TEST_CASE("inspect: each kind of fault on each of eight ranks, ten times", "[slow]") {
  std::mt19937 random(20);
  for (const std::string deed : {"spin", "skip", "stop", "kill"}) {
    DYNAMIC_SECTION(deed) for (int rank = 0; rank < 8; ++rank) {
      TemporaryDirectory directory;
      prepare_run(directory);
      int named = 0;
      for (int trial = 0; trial < 10; ++trial) {
        const char* groups[] = {"tensor", "shard", "world"};
        named += check_trial(directory, {deed, rank, groups[trial % 3]}, "run" + std::to_string(trial), std::chrono::milliseconds(random() % 500));
      }
      CHECK(named >= (deed == "kill" ? 1 : 10));
      std::cout << deed << " of rank " << rank << ": 10 trials, in " << named << " an operation that waits for it\n" << std::flush;
    }
  }
}

TEST_CASE("inspect: a finished run, with a log and a black box of each rank") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments train = kTrainOnly + layout(2, 1, 1, 0) + in("two") + sets({"training.global_batch_size=1"});  // a step is shorter than the ring
  must(directory, train);
  CHECK(names_in(directory / "two/logs") == std::set<std::string>{"rank-0000.blackbox", "rank-0000.log", "rank-0001.blackbox", "rank-0001.log"});
  const Outcome outcome = must(directory, {"inspect", "two"});
  INFO(outcome.out);
  CHECK(has(outcome.out, "two: 2 ranks, 2 ended; as of "));
  CHECK(has(outcome.out, "ranks 0, 1 ended: done\n"));
  CHECK_FALSE(has(outcome.out, "never entered"));
  const nlohmann::json json = inspect_json(directory, "two");
  CHECK(json["ranks"][1]["step"] == 6);
  CHECK(json["ranks"][1]["device"] == "cpu, 1 thread");
  CHECK(json["ranks"][1]["coordinate"] == "pipeline 0, replicate 0, shard 0, tensor 1");
  CHECK(json["ranks"][1]["end"] == "done");
  CHECK(json["ranks"][1]["memory_peak_bytes"] > 10000);
  CHECK(json["ranks"][1]["resident_peak_bytes"] > 1000000);
  const std::string log = log_of(directory, "two", 1);
  INFO(log);
  CHECK(std::regex_search(
      log, std::regex(R"(^\S+Z info     start of rank 1 of 2: host \S+, process \d+, cpu, 1 thread, pipeline 0, replicate 0, shard 0, tensor 1, )")));
  for (const char* line : {"info     training from step 1 to 6\n", "info     saving step 4\n", "info     end: done\n"}) CHECK(has(log, line));
  const std::string history = must(directory, {"inspect", "two", "--rank", "1"}).out;
  INFO(history);
  CHECK(has(history, "Z  step 6\n"));
  CHECK(std::regex_search(history, std::regex("Z  forward of micro-batch [0-9]+, blocks\\.[0-3]\n")));
  CHECK(std::regex_search(history, std::regex("Z  begins all_reduce [0-9]+ of group tensor, [0-9.]+ (B|KiB)\n")));
  CHECK(std::regex_search(history, std::regex("Z  ends all_reduce [0-9]+ of group tensor\n")));
  // A run that has nothing to do leaves them as they are.
  const auto before = directory.listing();
  must(directory, train);
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("inspect: without black boxes, and bad usage") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainOnly + in("one") + sets({"observe.black_box=false", "training.steps=2"}));
  CHECK(names_in(directory / "one/logs") == std::set<std::string>{"rank-0000.log"});
  check_error(run(directory, {"inspect", "one"}), 66,
              "one: no black box of a rank (one/logs/rank-0000.blackbox); allowed the directory of a run that has");
  check_error(run(directory, {"inspect", "nowhere"}), 66, "nowhere: no black box of a rank");
  check_error(run(directory, {"inspect"}), 64, "inspect: allowed either RUN or --process PID");
  check_error(run(directory, {"inspect", "one", "--process", "1"}), 64, "inspect: allowed either RUN or --process PID");
  check_error(run(directory, {"inspect", "--process", "4194000"}), 66, "there is no process 4194000 on this host");
  check_error(run(directory, {"inspect", "one", "--rank", "7"}), 66, "one/logs/rank-0007.blackbox");
  check_error(run(directory, {"inspect", "one", "--rank", "0", "--json"}), 64, "--rank: prints its history as text only");
  must(directory, kTrainOnly + in("two") + sets({"training.steps=2"}));
  fs::copy_file(directory / "two/logs/rank-0000.blackbox", directory / "two/logs/rank-0001.blackbox");
  check_error(run(directory, {"inspect", "two", "--rank", "1"}), 65, "two/logs/rank-0001.blackbox: that of rank 0 of 1");
  write_file(directory / "two/logs/rank-0000.blackbox", std::string(72104, '\x1b'));
  fs::remove(directory / "two/logs/rank-0001.blackbox");
  for (const Arguments& more : {Arguments{}, Arguments{"--json"}, Arguments{"--rank", "0"}})
    check_error(run(directory, Arguments{"inspect", "two"} + more), 65, "two/logs/rank-0000.blackbox: not a black box");
  fs::remove_all(directory / "two/logs");
  fs::create_symlink("logs", directory / "two/logs");
  check_error(run(directory, {"inspect", "two"}), 74, "two/logs: cannot list the directory: Too many levels of symbolic links");
}

TEST_CASE("inspect: on a file system that cannot map files a run says so once, and trains") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome outcome = must(Process(Arguments{"env", "LD_PRELOAD=" + shim("map"), "TRIREME_SHIM_NO_MAP=.blackbox", kBinary} + kTrainOnly +
                                           layout(2, 1, 1, 0) + in("two") + sets({"training.steps=2"}),
                                       directory.path())
                                   .wait());
  INFO(outcome.err);
  CHECK(count(outcome.err, "cannot map the black box into memory: No such device") == 1);
  CHECK(has(outcome.err, "warning: two/logs/rank-0000.blackbox: cannot map the black box into memory: No such device; the same on 1 other rank; "));
  CHECK(names_in(directory / "two/logs") == std::set<std::string>{"rank-0000.log", "rank-0001.log"});
  CHECK(has(log_of(directory, "two", 1), "warning  two/logs/rank-0001.blackbox: cannot map the black box"));
  CHECK(losses(directory / "two", 2).size() == 2);
}

TEST_CASE("inspect: SIGQUIT to the launcher writes all stacks, prints where each rank is, and the run continues", "[alone]") {
  TemporaryDirectory directory;
  prepare_run(directory);
  LiveJob job(directory, "run", kEndless + layout(2, 1, 2, 1));
  REQUIRE(job.wait_for_step(3));
  job.signal(SIGQUIT);
  REQUIRE(job.wait_for_error("4 ranks, 4 alive\n", 20) >= 0);
  const size_t step = job.last_step();
  CHECK(job.wait_for_step(step + 5));
  const std::string err = job.err();
  INFO(err);
  CHECK(std::regex_search(err, std::regex("\n   3  \\S+  +[0-9]+  alive  +[0-9]+  ")));
  for (int rank = 0; rank < 4; ++rank) {
    const std::string log = log_of(directory, "run", rank);
    INFO(log);
    CHECK(has(log, "warning  requested by SIGQUIT to the launcher; stacks of all threads:\n  thread "));
    if (!has(log, "this build has no libdw")) CHECK(has(log, "trireme::Run::loop() + 0x"));
    CHECK(has(log, "info     end of the stacks\n"));
  }
  // Directly to one rank: only its stacks.
  ::kill(job.ranks(4).at(2), SIGQUIT);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!has(log_of(directory, "run", 2), "requested by SIGQUIT;") && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(has(log_of(directory, "run", 2), "warning  requested by SIGQUIT; stacks of all threads:\n"));
  CHECK_FALSE(has(log_of(directory, "run", 1), "requested by SIGQUIT;"));
  CHECK(job.wait_for_step(job.last_step() + 5));
  job.signal(SIGTERM);
  const Outcome outcome = job.wait();
  CHECK(outcome.code == 75);
  CHECK(has(log_of(directory, "run", 2), "info     end: stopped on request\n"));
}

TEST_CASE("inspect: SIGQUIT and a stop work while nobody reads a full pipe at standard error") {
  TemporaryDirectory directory;
  prepare_run(directory);
  REQUIRE(::mkfifo((directory / "errors").c_str(), 0600) == 0);
  const int pipe = ::open((directory / "errors").c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC);
  Process job(Arguments{"sh", "-c", "exec \"$@\" 2>errors", kBinary, kBinary} + kTrainOnly + in("run") + kEndless + layout(2, 1, 1, 0),
              directory.path());
  const auto comes_true = [](const auto& condition) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!condition() && std::chrono::steady_clock::now() < deadline) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return condition();
  };
  const auto log_has = [&](const std::string& part, size_t times) {
    return fs::exists(directory / "run/logs/rank-0001.log") && count(log_of(directory, "run", 1), part) == times;
  };
  REQUIRE(comes_true([&] { return fs::exists(directory / "run/metrics.jsonl") && has(read_file(directory / "run/metrics.jsonl"), "{\"step\":3,"); }));
  const std::string block(65536, '.');
  while (::write(pipe, block.data(), block.size()) > 0 || ::write(pipe, ".", 1) > 0) {
  }
  for (const size_t requests : {1, 2}) {
    job.signal(SIGQUIT);
    CHECK(comes_true([&] { return log_has("end of the stacks\n", requests) || log_has("the stacks could not be read\n", requests); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));  // until the launcher has written, or waits to write, where each rank is
  }
  job.signal(SIGTERM);
  CHECK(comes_true([&] { return log_has("end: stopped on request\n", 1); }));
  std::string text;
  for (std::string part(4096, ' '); job.running();) {
    const ssize_t bytes = ::read(pipe, part.data(), part.size());
    if (bytes > 0)
      text.append(part, 0, static_cast<size_t>(bytes));
    else
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::close(pipe);
  CHECK(job.wait().code == 75);
  CHECK(has(text, "2 ranks, 2 alive\n"));
}

TEST_CASE("inspect: before hung ranks are ended they write their stacks, and the message names the log") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const fs::path trigger = directory / "trigger";
  LiveJob job(directory, "run", kEndless + layout(2, 1, 2, 1) + sets({"resilience.hang_seconds=2"}), fault(3, "spin", "tensor", trigger),
              faulty_train_program());
  REQUIRE(job.wait_for_step(30));
  write_file(trigger, "");
  REQUIRE(job.wait_for_error("rank 3 (", 40) >= 0);
  CHECK(job.wait_until_gone(30) >= 0);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 70);
  const std::string path = (directory / "run/logs/rank-0003.log").string();
  CHECK(std::regex_search(outcome.err,
                          std::regex("rank 3 \\(.* has made no progress for [0-9]+ s; .*; rank 2 waits for it in \\S+ [0-9]+ of group tensor .*"
                                     "; stacks of its threads: " +
                                     path + "\n")));
  const std::string log = log_of(directory, "run", 3);
  INFO(log);
  CHECK(has(log, "; stacks of all threads:\n"));
  if (!has(log, "this build has no libdw")) CHECK(has(log, "loop_without_end"));
  CHECK(has(log, "error    end: ordered to exit by the job monitor: rank 3 ("));
  CHECK_FALSE(has(log_of(directory, "run", 2), "stacks of all threads"));
  const std::string text = must(directory, {"inspect", "run"}).out;
  INFO(text);
  // mpirun may kill a rank that has not noted its end yet as soon as the first one exits.
  CHECK(has(text, "3 ended: ordered to exit by the job monitor: rank 3 ("));
  CHECK(has(text, "  rank 3 (host "));
}

TEST_CASE("inspect: after a restart the black boxes of the job that died are still there") {
  TemporaryDirectory directory;
  prepare_run(directory);
  LiveJob job(directory, "run", kEndless + layout(2, 1, 1, 0) + Arguments{"--restarts", "1"} + sets({"checkpoint.every=20"}));
  REQUIRE(job.wait_for_step(25));
  const pid_t victim = job.ranks(2).at(1);
  ::kill(victim, SIGKILL);
  REQUIRE(job.wait_for_error("restart 1 of 1", 20) >= 0);
  REQUIRE(job.wait_for_step(40));
  const nlohmann::json now = inspect_json(directory, "run"), before = inspect_json(directory, "run", {"--previous"});
  INFO(before.dump(1));
  CHECK(now["ranks"][1]["process"] == "alive");
  CHECK(before["ranks"][1]["process"] == "dead");
  CHECK(before["ranks"][1]["pid"] == victim);
  CHECK(before["verdict"]["ranks"] == Ranks{1});
  CHECK(now["verdict"].is_null());
  CHECK(before["ranks"][1]["step"] >= 25);
  const std::string log = log_of(directory, "run", 1);
  CHECK(count(log, "start of rank 1 of 2") == 2);
  job.signal(SIGTERM);
  CHECK(job.wait().code == 75);
}

}  // namespace trireme::test
