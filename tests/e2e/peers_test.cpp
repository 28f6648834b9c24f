// Jobs that lose the memory of ranks and continue from the copies that others have.
#include <sys/inotify.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <fstream>
#include <functional>
#include <thread>

#include "tests/e2e/fingerprint.h"
#include "tests/e2e/live_job.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/peer_directory.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

// Longer than any test lets it run, so that every kill lands in the run.
const Arguments kShape = layout(2, 1, 4, 3) + sets({"checkpoint.every=1000000", "training.steps=1000000"}) + kNoEvaluation;

Arguments until(int64_t step) { return {"--max-steps", std::to_string(step)}; }

Arguments with_copies(const TemporaryDirectory& directory, int copies = 1) {
  fs::create_directories(directory / "memory");
  return sets({"resilience.peer_copies=" + std::to_string(copies), "resilience.peer_every=3",
               "resilience.peer_directory=" + (directory / "memory").string()});
}

/// How often files of tensors in a directory are opened or read while it lives.
class Reads {
 public:
  explicit Reads(const fs::path& directory) : file_(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC)) {
    if (::inotify_add_watch(file_, directory.c_str(), IN_OPEN | IN_ACCESS) < 0) throw std::runtime_error("inotify");
  }
  ~Reads() { ::close(file_); }
  Reads(const Reads&) = delete;
  Reads& operator=(const Reads&) = delete;
  int of_tensors() const {
    int found = 0;
    alignas(inotify_event) std::array<char, 1 << 16> buffer{};
    for (ssize_t bytes; (bytes = ::read(file_, buffer.data(), buffer.size())) > 0;)
      for (ssize_t at = 0; at < bytes;) {
        const auto* const event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
        if (event->len > 0 && std::string(event->name).ends_with(".safetensors")) ++found;
        at += static_cast<ssize_t>(sizeof(inotify_event) + event->len);
      }
    return found;
  }

 private:
  int file_;
};

/// Ends all ranks of a job at once, some steps after its copies of `step` are complete.
void kill_after_copies_of(LiveJob& job, int64_t step) {
  REQUIRE(job.wait_for_step(1));
  const auto is_complete = [&] {
    for (const nlohmann::json& line : metrics(job.run_directory()))
      if (line.value("event", "") == "peer_copy" && line["step"] >= step && !line.contains("error")) return true;
    return false;
  };
  while (!is_complete()) REQUIRE(job.wait_for_step(job.last_step() + 1));
  for (const auto& [rank, process] : job.ranks(8)) ::kill(process, SIGKILL);
  CHECK(job.wait().code != 0);
}

PeerDirectory memory_of(const TemporaryDirectory& directory, const std::string& run) { return {directory / "memory", directory / run}; }

void lose_memory_of(const TemporaryDirectory& directory, const std::string& run, int rank) {
  const fs::path holder = memory_of(directory, run).of(rank, {}).parent_path();
  REQUIRE(fs::remove_all(holder) > 3);
}

int64_t resumed_at(const fs::path& run) {
  int64_t step = -1;
  for (const nlohmann::json& line : metrics(run))
    if (line.value("event", "") == "start") step = line["step"];
  return step;
}

}  // namespace

TEST_CASE("peer copies: with the memory of two of eight ranks lost, a run continues bit for bit and reads no checkpoint") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments shape = kShape + sets({"model.ffn_size=5120"});  // each part has more than the MiB that is sent at a time
  const Arguments command = kTrain + shape;
  must(directory, command + in("run") + with_copies(directory) + until(5));  // leaves a checkpoint of step 5
  CHECK(names_in(directory / "memory").empty());                             // an orderly end leaves no copies
  LiveJob job(directory, "run", shape + with_copies(directory));
  kill_after_copies_of(job, 12);
  CHECK(checkpoint_names(directory / "run") == std::set<std::string>{"step-00000005"});
  lose_memory_of(directory, "run", 2);
  lose_memory_of(directory, "run", 5);
  const Reads reads(directory / "run" / "checkpoints" / "step-00000005");
  const auto last = static_cast<int64_t>(job.last_step()) + 4;
  const Outcome outcome = must(directory, command + in("run") + with_copies(directory) + until(last));
  CHECK(reads.of_tensors() == 0);
  CHECK(says(outcome, "resuming from peer copies of step "));
  CHECK(resumed_at(directory / "run") >= 12);
  CHECK(count(read_file(directory / "run" / "jobs.jsonl"), "\"peer_copy\"") >= 4);  // time that goodput knows of
  must(directory, command + in("whole") + until(last));
  CHECK(fingerprint_of(directory / "run", last) == fingerprint_of(directory / "whole", last));
  CHECK(names_in(directory / "memory").empty());
}

TEST_CASE("peer copies: a run that is killed twice before its first checkpoint continues from its copies both times") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kShape + with_copies(directory);
  LiveJob first(directory, "run", command);
  kill_after_copies_of(first, 3);
  LiveJob second(directory, "run", command);
  kill_after_copies_of(second, static_cast<int64_t>(first.last_step()) + 4);
  const int64_t before = resumed_at(directory / "run");
  CHECK(before >= 3);
  const auto last = static_cast<int64_t>(second.last_step()) + 4;
  must(directory, kTrain + command + in("run") + until(last));
  CHECK(resumed_at(directory / "run") > before);
  must(directory, kTrain + kShape + in("whole") + until(last));
  CHECK(fingerprint_of(directory / "run", last) == fingerprint_of(directory / "whole", last));
  CHECK_FALSE(fs::exists(directory / "run" / "peer_copies.json"));
}

TEST_CASE("peer copies: without every part in memory, a run continues from its checkpoint") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrain + kShape;
  must(directory, command + in("run") + with_copies(directory) + until(5));
  LiveJob job(directory, "run", kShape + with_copies(directory));
  kill_after_copies_of(job, 9);
  // All of the following begins with the run and the memory as the killed job left them.
  const auto copy = [&](const char* from, const char* to) {
    for (const char* name : {"run", "memory"}) {
      fs::remove_all(directory / to / name);
      fs::create_directories(directory / to);
      fs::copy(directory / from / name, directory / to / name, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    }
  };
  copy(".", "killed");
  const auto check_continues = [&](const char* what, int64_t last, const std::function<void()>& disturb) {
    INFO(what);
    copy("killed", ".");
    disturb();
    const Reads reads(directory / "run" / "checkpoints" / "step-00000005");
    const Outcome outcome = must(directory, command + in("run") + with_copies(directory) + until(last));
    CHECK(!says(outcome, "resuming from peer copies"));
    CHECK((resumed_at(directory / "run") != 5 || reads.of_tensors() > 0));  // so that the test above would see a read
    const std::string whole = "whole-" + std::to_string(last);
    if (!fs::exists(directory / whole)) must(directory, command + in(whole) + until(last));
    CHECK(fingerprint_of(directory / "run", last) == fingerprint_of(directory / whole, last));
  };
  check_continues("two ranks that hold each other's copies have lost their memory", 8, [&] {
    lose_memory_of(directory, "run", 2);
    lose_memory_of(directory, "run", 3);
  });
  check_continues("a part is damaged in both places that have it", 8, [&] {
    const PeerDirectory memory = memory_of(directory, "run");
    int damaged = 0;
    for (const PeerPart& part : memory.parts()) {
      if (part.source != 4) continue;
      std::fstream file(memory.of(part) / "rank-00004.safetensors", std::ios::in | std::ios::out | std::ios::binary);
      file.seekp(-3, std::ios::end);
      file.put('!');
      ++damaged;
    }
    REQUIRE(damaged >= 2);
  });
  const int64_t later = static_cast<int64_t>(job.last_step()) + 4;
  check_continues("another step is asked for", later, [&] {
    must(directory, command + in("run") + with_copies(directory) + Arguments{"--resume", "run/checkpoints/step-00000005"} + until(later - 2));
    CHECK(resumed_at(directory / "run") == 5);
  });
  check_continues("a job without copies was in between", 8, [&] {
    must(directory, command + in("run") + until(6));
    CHECK(resumed_at(directory / "run") == 5);
  });
}

TEST_CASE("peer copies: a launcher's restart continues from them, with fewer data ranks too") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kShape + sets({"resilience.restarts=2", "training.precision=fp64"});
  const bool elastic = GENERATE(false, true);
  CAPTURE(elastic);
  const std::string run = elastic ? "elastic" : "run";
  Arguments more = with_copies(directory, 2);
  if (elastic) {
    write_file(directory / "hosts", "localhost slots=8\n");
    more = more + sets({"resilience.elastic=replicas", "resilience.minimum_replicas=2"}) + Arguments{"--hosts", "hosts"};
  }
  LiveJob job(directory, run, command + more);
  const auto is_copied = [&] { return count(read_file(directory / run / "metrics.jsonl"), "\"peer_copy\"") >= 3; };
  REQUIRE(job.wait_for_step(9));
  while (!is_copied()) REQUIRE(job.wait_for_step(job.last_step() + 1));
  const pid_t victim = job.ranks(8).at(3);
  if (elastic) write_file(directory / "hosts", "localhost slots=6\n");
  ::kill(victim, SIGKILL);
  REQUIRE(job.wait_for_error("resuming from peer copies of step ", 60) >= 0);
  REQUIRE(job.wait_for_step(job.last_step() + 6));
  job.signal(SIGTERM);
  const Outcome outcome = job.wait();
  INFO(outcome.err);
  REQUIRE(outcome.code == 75);
  const size_t last = job.last_step();
  must(directory, kTrain + command + in("whole") + until(static_cast<int64_t>(last)));
  const std::vector<double> whole = losses(directory / "whole", last), found = losses(directory / run, last);
  for (size_t step = 0; step < whole.size(); ++step) {
    CAPTURE(step);
    CHECK(found[step] == Approx(whole[step]).epsilon(elastic ? 1e-10 : 0));
  }
}

TEST_CASE("peer copies: a damaged part without any checkpoint ends the job, and silently changes nothing") {
  TemporaryDirectory directory;
  prepare_run(directory);
  LiveJob job(directory, "run", kShape + with_copies(directory));
  kill_after_copies_of(job, 3);
  const PeerDirectory memory = memory_of(directory, "run");
  for (const PeerPart& part : memory.parts()) {
    std::fstream file(memory.of(part) / "rank-00004.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-3, std::ios::end);
    file.put('!');
  }
  const Arguments command = kTrain + kShape + in("run") + with_copies(directory) + until(8);
  check_error(run(directory, command), 65, "there is no checkpoint; remove run/peer_copies.json to start over");
  fs::remove(directory / "run" / "peer_copies.json");
  must(directory, command);
  must(directory, kTrain + kShape + in("whole") + until(8));
  CHECK(fingerprint_of(directory / "run", 8) == fingerprint_of(directory / "whole", 8));
}

TEST_CASE("peer copies: a run that has stopped early, and whose last checkpoint fails, gets one from its copies") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // The weights do not change: the second evaluation, after step 120, is no improvement and ends the run, right behind the copies of that step.
  const Arguments command = layout(1, 1, 2, 1) + with_copies(directory) +
                            sets({"checkpoint.every=1000000", "training.steps=1000000", "training.evaluate.every=60", "training.stop.patience=1",
                                  "training.optimizer.learning_rate=1e-30", "training.schedule.final_learning_rate=0"});
  LiveJob job(directory, "run", command);
  REQUIRE(job.wait_for_step(1));
  const fs::path checkpoints = directory / "run" / "checkpoints";
  fs::rename(checkpoints, directory / "aside");
  write_file(checkpoints, "in the way");
  const Outcome first = job.wait();
  INFO(first.err);
  CHECK(first.code == 74);
  fs::remove(checkpoints);
  fs::rename(directory / "aside", checkpoints);
  const Outcome second = must(directory, kTrain + command + in("run"));
  CHECK(says(second, "resuming from peer copies of step 120"));
  CHECK(checkpoint_names(directory / "run") == std::set<std::string>{"step-00000120"});
  CHECK(names_in(directory / "memory").empty());
  check_error(must(directory, kTrain + command + in("run")), 0, "nothing to do: 120 of 1000000 steps are done; the run stopped early");
}

TEST_CASE("peer copies: a job that waits for another one's end continues from the last copies") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kShape + with_copies(directory);
  LiveJob first(directory, "run", command);
  REQUIRE(first.wait_for_step(7));
  const std::map<int, pid_t> ranks = first.ranks(8);
  LiveJob second(directory, "run", command);
  REQUIRE(first.wait_for_step(first.last_step() + 12));
  int64_t copied = 0;
  for (const nlohmann::json& line : metrics(directory / "run"))
    if (line.value("event", "") == "peer_copy") copied = line["step"];
  for (const auto& [rank, process] : ranks) ::kill(process, SIGKILL);
  CHECK(first.wait().code != 0);
  REQUIRE(second.wait_for_error("resuming from peer copies of step ", 60) >= 0);
  REQUIRE(second.wait_for_step(second.last_step() + 2));
  CHECK(resumed_at(directory / "run") >= copied);
  second.signal(SIGTERM);
  CHECK(second.wait().code == 75);
}

TEST_CASE("peer copies: what they cannot be is refused before the run starts") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command = kTrain + kShape + in("run");
  const auto refused = [&](const Arguments& arguments, const std::string& words) {
    check_error(run(directory, command + arguments), 64, words);
    CHECK_FALSE(fs::exists(directory / "run"));
  };
  refused(sets({"resilience.peer_copies=8"}), "the job has 8 ranks, and a state and its copies are on different ones; allowed 0 to 7");
  refused(sets({"resilience.peer_every=5"}), "has no effect: resilience.peer_copies is 0; remove the key");
  refused(sets({"resilience.peer_copies=1", "resilience.peer_directory=" + (directory / "nowhere").string()}),
          "not a directory here; allowed a directory in memory");
  refused(with_copies(directory) + sets({"security.audit.enabled=true"}), "the audit log has no record of a state in memory");
}

TEST_CASE("peer copies: whoever takes their name beforehand, or puts a link there, neither stops a job nor gets a copy") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const fs::path place = memory_of(directory, "run").path();
  const bool linked = GENERATE(false, true);
  fs::create_directories(directory / "memory");
  linked ? fs::create_directory_symlink(directory / "elsewhere", place) : write_file(place, "of somebody else");
  fs::create_directory(directory / "elsewhere");
  write_file(place.string() + "-000000", "of somebody else");
  LiveJob job(directory, "run", kShape + with_copies(directory));
  kill_after_copies_of(job, 3);
  CHECK(names_in(directory / "memory").size() == 3);
  const PeerDirectory memory = memory_of(directory, "run");
  CHECK(memory.path().filename().string().starts_with(place.filename().string() + "-"));
  CHECK((fs::status(memory.path()).permissions() & fs::perms::all) == fs::perms::owner_all);
  CHECK_FALSE(memory.parts().empty());
  const Outcome outcome = must(directory, kTrain + kShape + in("run") + with_copies(directory) + until(8));
  CHECK(says(outcome, "resuming from peer copies of step "));
  CHECK(names_in(directory / "memory").size() == 2);
  CHECK(fs::is_empty(directory / "elsewhere"));
  if (!linked) CHECK(read_file(place) == "of somebody else");
}

}  // namespace trireme::test
