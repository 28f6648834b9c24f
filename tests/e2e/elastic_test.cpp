// Jobs that lose hosts and continue with fewer data ranks.
#include <csignal>
#include <iostream>

#include "tests/e2e/fingerprint.h"
#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

struct Segment {
  int64_t first = 0;  ///< step that was done at its start
  int64_t ranks = 0;
};

std::vector<Segment> segments_of(const fs::path& run) {
  std::vector<Segment> segments;
  for (const nlohmann::json& line : metrics(run))
    if (line.value("event", "") == "start") segments.push_back({line["step"], line["world_size"]});
  return segments;
}

std::string ranks_of(const std::vector<Segment>& segments) {
  std::string text;
  for (const Segment& segment : segments) text += std::to_string(segment.ranks) + " ";
  return text;
}

/// Trains the same sequence of layouts, each by a command of its own.
void train_by_hand(const TemporaryDirectory& directory, const Arguments& command, const std::vector<Segment>& segments, int64_t steps, int64_t each) {
  for (size_t i = 0; i < segments.size(); ++i) {
    const int64_t last = i + 1 < segments.size() ? segments[i + 1].first : steps;
    if (last == segments[i].first) continue;
    must(directory, kTrain + command + in("by-hand") + sets({"parallel.data=" + std::to_string(segments[i].ranks / each)}) +
                        Arguments{"--max-steps", std::to_string(last)});
  }
}

void set_slots(const TemporaryDirectory& directory, int slots) {
  write_file(directory / "hosts.new", "localhost slots=" + std::to_string(slots) + "\n");
  fs::rename(directory / "hosts.new", directory / "hosts");
}

const Arguments kElastic = sets({"resilience.elastic=replicas", "resilience.minimum_replicas=2", "resilience.restarts=3", "training.precision=fp64"});

}  // namespace

TEST_CASE("elastic: 8 ranks, 6 after a lost one, 4 and 8 again train what the same sequence of layouts trains by hand") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kNoEvaluation + layout(2, 1, 4, 3) + kElastic + sets({"training.steps=1000000", "checkpoint.every=6"});
  set_slots(directory, 8);
  LiveJob job(directory, "run", command + Arguments{"--hosts", "hosts"});
  // Without a complete save, the lost rank would make the job start over, and its metrics begin again.
  REQUIRE(job.wait_until([&] { return fs::exists(directory / "run/checkpoints/latest/manifest.json"); }));
  REQUIRE(job.wait_for_step(8));
  const std::vector<std::pair<int, std::string>> changes{
      {6, "using 6 of 8 ranks on 1 host"}, {4, "using 4 of 8 ranks on 1 host"}, {8, "using 8 of 8 ranks on 1 host"}};
  for (const auto& [slots, message] : changes) {
    const pid_t victim = slots == 6 ? job.ranks(8).at(5) : 0;
    set_slots(directory, slots);
    const auto begin = std::chrono::steady_clock::now();
    if (victim != 0) ::kill(victim, SIGKILL);
    REQUIRE(job.wait_for_error(message, 30) >= 0);
    const size_t before = job.last_step();
    REQUIRE(job.wait_for_step(before + 1));
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    std::cout << "elastic: " << seconds << " s to the first new step on " << slots << " ranks\n";
    REQUIRE(job.wait_for_step(before + 4));
  }
  job.signal(SIGTERM);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 75);
  const size_t steps = job.last_step();
  CHECK(count(outcome.err, "\nrestart ") == 1);  // moving to other hosts is no restart
  const std::vector<Segment> segments = segments_of(directory / "run");
  REQUIRE(ranks_of(segments) == "8 6 4 8 ");

  const nlohmann::json goodput = nlohmann::json::parse(must(directory, {"goodput", "run", "--json"}).out);
  CHECK(goodput.at("jobs") == 4);
  CHECK(goodput.at("failures") == 1);

  train_by_hand(directory, command, segments, static_cast<int64_t>(steps), 2);
  CHECK(fingerprint_of(directory / "run", static_cast<int64_t>(steps)) == fingerprint_of(directory / "by-hand", static_cast<int64_t>(steps)));
  // The same batches, and the same sums up to rounding, as without any loss.
  must(directory, kTrain + command + in("whole") + Arguments{"--max-steps", std::to_string(steps)});
  const std::vector<double> whole = losses(directory / "whole", steps), found = losses(directory / "run", steps);
  for (size_t step = 0; step < whole.size(); ++step) {
    CAPTURE(step);
    CHECK(found[step] == Approx(whole[step]).epsilon(1e-10));
  }
  CHECK(found != whole);
}

TEST_CASE("elastic: a job that starts with fewer hosts, and one with too few, which waits for others") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kNoEvaluation + layout(2, 1, 4, 2) + kElastic + Arguments{"--hosts", "hosts"};
  set_slots(directory, 7);
  const Outcome fewer = must(directory, kTrain + command + in("fewer"));
  CHECK(says(fewer, "using 6 of 8 ranks on 1 host\n"));
  CHECK(ranks_of(segments_of(directory / "fewer")) == "6 ");

  set_slots(directory, 3);
  LiveJob waiting(directory, "waiting", command);
  REQUIRE(waiting.wait_for_error("waiting up to 600 s for hosts: those that can be reached have no room for 4 ranks\n", 20) >= 0);
  CHECK_FALSE(fs::exists(directory / "waiting"));
  set_slots(directory, 4);
  CHECK(waiting.wait().code == 0);
  CHECK(ranks_of(segments_of(directory / "waiting")) == "4 ");

  set_slots(directory, 3);
  check_error(run(directory, kTrain + command + in("short") + sets({"resilience.host_wait_seconds=0"})), 70,
              "giving up: the hosts that can be reached have no room for 4 ranks");
  LiveJob stopped(directory, "stopped", command);
  REQUIRE(stopped.wait_for_error("waiting up to", 20) >= 0);
  stopped.signal(SIGTERM);
  CHECK(stopped.wait().code == 75);
}

TEST_CASE("elastic: ranks of another launcher decide how many data ranks there are") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrainOnly + layout(2, 1, 4, 2) + sets({"resilience.elastic=replicas", "resilience.minimum_replicas=2"});
  const Outcome six = run_under_mpirun(directory, 6, command + in("six"));
  INFO(six.err);
  CHECK(six.code == 0);
  const Outcome two = run_under_mpirun(directory, 2, command + in("two"));
  CHECK(two.code == 64);
  CHECK(says(two, "but 2 were started"));
  CHECK_FALSE(fs::exists(directory / "two"));
}

TEST_CASE("elastic: verify proves layouts that do not divide the batch") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments verify =
      Arguments{"verify", "run.yaml", "--layouts", "dp3z3 pp2dp3z1"} + layout(1, 1, 4, 3) + sets({"resilience.elastic=replicas"});
  CHECK(count(must(directory, verify).out, " same ") == 3);
}

TEST_CASE("elastic: bench step times a batch that the data ranks do not divide") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments bench = Arguments{"bench", "step", "run.yaml"} + kNoEvaluation + layout(1, 1, 3, 2) + sets({"resilience.elastic=replicas"});
  CHECK(must(directory, bench).out.find("step") != std::string::npos);
}

TEST_CASE("elastic: a hosts file without slots is refused") {
  TemporaryDirectory directory;
  prepare_run(directory);
  write_file(directory / "hosts", "localhost\n");
  const auto before = directory.listing();
  check_error(
      run(directory, kTrainOnly + layout(1, 1, 2, 0) + sets({"resilience.elastic=replicas"}) + Arguments{"--hosts", "hosts"}), 64,
      "hosts file hosts: host localhost has no slots=N, or several lines, and resilience.elastic must know how many ranks each host can take");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
