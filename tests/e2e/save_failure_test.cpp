// Saves that die or fail at any of their calls, with the binary as it is: a preloaded library (tests/shim/io.cpp) counts, kills, fails and damages.
#include <sys/mount.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>
#include <set>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kTrain = Arguments{"train", "run.yaml"} + sets({"training.evaluate.every=0", "data.validation=[]"});
constexpr size_t kSteps = 6;  // checkpoints every 2

size_t count(const std::string& text, const std::string& words) {
  size_t found = 0;
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) ++found;
  return found;
}

std::set<std::string> names_in(const fs::path& directory) {
  std::set<std::string> names;
  for (const auto& item : fs::directory_iterator(directory)) names.insert(item.path().filename().string());
  return names;
}

std::string tensors_of(const fs::path& checkpoint) {
  std::string bytes;
  for (const auto& item : std::set<fs::path>(fs::directory_iterator(checkpoint), fs::directory_iterator()))
    if (item.extension() == ".safetensors") bytes += read_file(item);
  return bytes;
}

/// A run that stands at step 2, for any number of trials to go on from, and what comes of it undisturbed.
class Trials {
 public:
  explicit Trials(const Arguments& ranks) : ranks_(ranks) {
    prepare_run(directory_);
    must(run("before", {"--max-steps", "2"}));
    must(run(copy("whole"), {}));
    losses_ = losses(path("whole"), kSteps);
  }

  fs::path path(const std::string& name) const { return directory_ / name; }
  Outcome run(const std::string& name, const Arguments& more) const { return test::run(directory_, command(name) + more); }

  /// A trial's run directory.
  std::string copy(const std::string& name = "trial") const {
    fs::remove_all(path(name));
    fs::copy(path("before"), path(name), fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return name;
  }

  /// The trial goes on under the shim, which takes `settings` without their prefix.
  Outcome disturbed(const Arguments& settings, const Arguments& more) const {
    Arguments environment{"env", std::string("LD_PRELOAD=") + TRIREME_SHIMS + "/libshim_io.so", "ASAN_OPTIONS=verify_asan_link_order=0",
                          "TRIREME_SHIM_DIRECTORY=" + fs::canonical(path("trial") / "checkpoints").string()};
    for (const std::string& setting : settings) environment.push_back("TRIREME_SHIM_" + setting);
    return Process(environment + Arguments{kBinary} + command("trial") + more, directory_.path()).wait();
  }

  /// The trial goes on with so many file descriptors.
  Outcome run_with_descriptors(int limit) const {
    const Arguments limited{"sh", "-c", "ulimit -n " + std::to_string(limit) + "; exec \"$@\"", "sh", kBinary};
    return Process(limited + command("trial"), directory_.path()).wait();
  }

  /// The calls with which a rank saves step 4.
  int calls_of_a_save(int rank) const {
    copy();
    fs::remove(path("count"));
    must(disturbed({"RANK=" + std::to_string(rank), "COUNT_FILE=" + path("count").string()}, {"--max-steps", "4"}));
    return std::stoi(read_file(path("count")));
  }

  /// Every published checkpoint is whole, and `latest` names one. Its step.
  int64_t require_whole() const {
    for (const fs::path& checkpoint : checkpoints_of(path("trial"))) {
      CheckpointReader(checkpoint).verify_digests();
      CHECK(tensors_of(checkpoint) == tensors_of(path("whole") / "checkpoints" / checkpoint.filename()));
    }
    std::vector<std::string> warnings;
    const auto newest = find_newest_checkpoint(path("trial"), warnings);
    REQUIRE(newest.has_value());
    CHECK(warnings.empty());
    CHECK(fs::equivalent(path("trial") / "checkpoints/latest", *newest));
    return CheckpointReader(*newest).description().step;
  }

  /// Nothing is left of what went wrong, and what was trained is what an undisturbed run trains.
  void require_as_undisturbed(const std::set<std::string>& steps) const {
    CHECK(require_whole() == kSteps);
    CHECK(losses(path("trial"), kSteps) == losses_);
    std::set<std::string> names{"latest"};
    for (const std::string& step : steps) names.insert("step-0000000" + step);
    CHECK(names_in(path("trial") / "checkpoints") == names);
  }

  static void must(const Outcome& outcome) {
    INFO(outcome.out << outcome.err);
    REQUIRE(outcome.code == 0);
  }

 private:
  Arguments command(const std::string& name) const { return kTrain + ranks_ + sets({"run.directory=" + name}); }

  TemporaryDirectory directory_;
  Arguments ranks_;
  std::vector<double> losses_;
};

/// Killed at call `call` of the save of step 4: the older or the new checkpoint stands, and the run goes on from it as if nothing had been.
void check_crash(const Trials& trials, int rank, int call) {
  CAPTURE(rank, call);
  trials.copy();
  const Outcome killed = trials.disturbed({"RANK=" + std::to_string(rank), "KILL_AT=" + std::to_string(call)}, {"--max-steps", "4"});
  INFO(killed.err);
  REQUIRE(killed.code != 0);
  const int64_t step = trials.require_whole();
  CHECK((step == 2 || step == 4));
  Trials::must(trials.run("trial", {}));
  trials.require_as_undisturbed({"2", "4", "6"});
}

/// Call `call`, of the save of step 4, fails: training goes on, and the save of step 6 succeeds.
void check_failure(const Trials& trials, int rank, int call, const std::string& error) {
  CAPTURE(rank, call, error);
  trials.copy();
  const Outcome outcome = trials.disturbed({"RANK=" + std::to_string(rank), "FAIL_AT=" + std::to_string(call), "ERRNO=" + error}, {});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 0);
  const bool stands = fs::exists(trials.path("trial") / "checkpoints/step-00000004");
  const size_t told = count(outcome.err, "step 4 was not saved");
  CHECK((told == 1 || (told == 0 && stands)));
  trials.require_as_undisturbed(stands ? std::set<std::string>{"2", "4", "6"} : std::set<std::string>{"2", "6"});
}

/// From call `call` on, of the save of step 4, everything fails: training goes on to its end, which says that its state is lost.
void check_failure_to_the_end(const Trials& trials, int rank, int call, const std::string& error) {
  CAPTURE(rank, call, error);
  trials.copy();
  const Outcome outcome = trials.disturbed({"RANK=" + std::to_string(rank), "FAIL_AT=" + std::to_string(call), "FAIL_FROM=1", "ERRNO=" + error}, {});
  INFO(outcome.out << outcome.err);
  CHECK(outcome.code == 74);
  CHECK(outcome.out.find("step 6/6") != std::string::npos);
  CHECK(count(outcome.err, "step 4 was not saved") <= 1);
  CHECK(count(outcome.err, "step 6 was not saved") == 1);
  trials.require_whole();
  Trials::must(trials.run("trial", {}));
  const bool stands = fs::exists(trials.path("trial") / "checkpoints/step-00000004");
  trials.require_as_undisturbed(stands ? std::set<std::string>{"2", "4", "6"} : std::set<std::string>{"2", "6"});
}

/// Of a save's calls: the first, one amid the tensors, and some of the last, which publish it.
std::set<int> sample(int calls) { return {1, calls / 2, calls - 22, calls - 18, calls - 14, calls - 10, calls - 6, calls - 3, calls}; }

}  // namespace

TEST_CASE("save: killed at a call, the older or the new checkpoint stands and the run goes on from it bit for bit") {
  const Trials trials(layout(1, 1, 1, 0));
  for (const int call : sample(trials.calls_of_a_save(0))) check_crash(trials, 0, call);
}

TEST_CASE("save: a disk that is full or broken at a call costs one checkpoint and one message") {
  const Trials trials(layout(1, 1, 1, 0));
  const int calls = trials.calls_of_a_save(0);
  const std::vector<std::string> errors{"ENOSPC", "EIO", "EDQUOT", "EMFILE", "EROFS", "EINVAL"};
  size_t next = 0;
  for (const int call : sample(calls)) check_failure(trials, 0, call, errors[next++ % errors.size()]);
  for (const int call : {1, 3, calls - 10}) check_failure_to_the_end(trials, 0, call, errors[next++ % errors.size()]);
}

TEST_CASE("save: one rank of two that dies or cannot write") {
  const Trials trials(layout(1, 1, 2, 3));
  const int calls = trials.calls_of_a_save(1);
  check_crash(trials, 1, calls / 2);
  check_failure(trials, 1, 1, "ENOSPC");
  check_failure(trials, 1, calls - 3, "EIO");
  check_failure(trials, 0, 2, "EMFILE");
}

TEST_CASE("save: what the disk gives back otherwise is not published") {
  const Trials trials(layout(1, 1, 1, 0));
  trials.copy();
  const Outcome outcome = trials.disturbed({"DAMAGE=1"}, {});
  INFO(outcome.err);
  CHECK(outcome.code == 74);
  CHECK(count(outcome.err, "is not what was written") == 2);
  CHECK(trials.require_whole() == 2);
  CHECK(names_in(trials.path("trial") / "checkpoints") == std::set<std::string>{"latest", "step-00000002"});
}

TEST_CASE("save: every call as a crash point and as a failure, of one rank and of each of two", "[slow]") {
  const auto [ranks, rank] = GENERATE(table<int, int>({{1, 0}, {2, 0}, {2, 1}}));
  const Trials trials(layout(1, 1, ranks, ranks == 1 ? 0 : 3));
  const int calls = trials.calls_of_a_save(rank);
  WARN(calls << " calls of rank " << rank << " of " << ranks);
  for (int call = 1; call <= calls; ++call) {
    check_crash(trials, rank, call);
    check_failure(trials, rank, call, call % 2 == 0 ? "ENOSPC" : "EIO");
  }
  // A rank that cannot even say that it fails costs rank 0 its patience: not here.
  for (int call = 1; call <= calls && rank == 0; call += 7) check_failure_to_the_end(trials, rank, call, "ENOSPC");
}

namespace {

/// A file system of its own on the checkpoints of a trial, which keeps its content.
class SmallDisk {
 public:
  explicit SmallDisk(fs::path at) : at_(std::move(at)) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  /// False where this user may not mount.
  bool mount(const char* options) {
    const fs::path aside = at_.string() + ".aside";
    fs::rename(at_, aside);
    fs::create_directory(at_);
    mounted_ = ::mount("none", at_.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) WARN("a file system cannot be mounted here: not tested");
    if (mounted_) fs::copy(aside, at_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return mounted_;
  }
  void change(unsigned long flags, const char* options) {
    while (::mount("none", at_.c_str(), nullptr, MS_REMOUNT | flags, options) != 0) REQUIRE(errno == EBUSY);  // a save is under way
  }

 private:
  fs::path at_;
  bool mounted_ = false;
};

/// A long run that saves every 10 steps, in the middle of which the disk is made unusable and usable again.
void check_trouble_in_between(const std::function<void()>& begin, const std::function<void()>& end, const TemporaryDirectory& directory,
                              const Arguments& messages) {
  Process process(Arguments{kBinary} + kTrain + sets({"training.steps=1000000", "checkpoint.every=10", "run.directory=trial"}), directory.path());
  REQUIRE(process.wait_for("step 25/"));
  begin();
  while (read_file(directory / "trial/metrics.jsonl").find("checkpoint_failed") == std::string::npos) REQUIRE(process.running());
  end();
  process.signal(SIGTERM);
  const Outcome outcome = process.wait();
  INFO(outcome.err);
  CHECK(outcome.code == 75);
  const bool told = std::any_of(messages.begin(), messages.end(), [&](const std::string& message) { return count(outcome.err, message) > 0; });
  CHECK(told);
  std::vector<std::string> warnings;
  const auto newest = find_newest_checkpoint(directory / "trial", warnings);
  REQUIRE(newest.has_value());
  CHECK(outcome.err.find("stopped on request after step " + std::to_string(CheckpointReader(*newest).description().step)) != std::string::npos);
  for (const fs::path& checkpoint : checkpoints_of(directory / "trial")) CheckpointReader(checkpoint).verify_digests();
  for (const std::string& name : names_in(directory / "trial/checkpoints")) CHECK(name.find('.') == std::string::npos);  // nothing unpublished is left
}

}  // namespace

TEST_CASE("save: a real disk without room for another file, at every stage of a save") {
  const Trials trials(layout(1, 1, 1, 0));
  for (const int inodes : {6, 7, 8, 9}) {
    CAPTURE(inodes);
    SmallDisk disk(trials.path(trials.copy()) / "checkpoints");
    if (!disk.mount(("nr_inodes=" + std::to_string(inodes)).c_str())) return;
    const Outcome full = trials.run("trial", {});
    INFO(full.err);
    CHECK(full.code == 74);
    CHECK(full.out.find("step 6/6") != std::string::npos);
    CHECK(count(full.err, "No space left on device") > 0);
    trials.require_whole();
    disk.change(0, "nr_inodes=1000");
    Trials::must(trials.run("trial", {}));
    trials.require_whole();
  }
}

TEST_CASE("save: a disk that fills up, and has room again, while training goes on") {
  TemporaryDirectory directory;
  prepare_run(directory);
  fs::create_directories(directory / "trial/checkpoints");
  SmallDisk disk(directory / "trial/checkpoints");
  if (!disk.mount("size=4m")) return;
  const fs::path filler = directory / "trial/checkpoints/filler";
  check_trouble_in_between(
      [&] {
        std::ofstream file(filler);
        file << std::string(4 << 20, 'x');
      },
      [&] { fs::remove(filler); }, directory, {"are free", "No space left"});
}

TEST_CASE("save: a disk that becomes read-only, and is written again, while training goes on") {
  TemporaryDirectory directory;
  prepare_run(directory);
  fs::create_directories(directory / "trial/checkpoints");
  SmallDisk disk(directory / "trial/checkpoints");
  if (!disk.mount("size=16m")) return;
  check_trouble_in_between([&] { disk.change(MS_RDONLY, "size=16m"); }, [&] { disk.change(0, "size=16m"); }, directory, {"Read-only file system"});
}

TEST_CASE("save: too few file descriptors stop a run with a message or cost it nothing") {
  const Trials trials(layout(1, 1, 1, 0));
  bool refused = false, done = false;
  for (const int limit : {4, 5, 6, 7, 8, 9, 10, 12, 16}) {
    CAPTURE(limit);
    trials.copy();
    const Outcome outcome = trials.run_with_descriptors(limit);
    INFO(outcome.err);
    CHECK(outcome.code < 128);
    CHECK((outcome.code == 0 || !outcome.err.empty()));
    const int64_t step = trials.require_whole();
    CHECK((outcome.code != 0 || step == kSteps));
    refused = refused || outcome.code != 0;
    done = done || outcome.code == 0;
  }
  CHECK(refused);
  CHECK(done);
}

}  // namespace trireme::test
