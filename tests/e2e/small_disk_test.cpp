// Full and read-only disks, and too few file descriptors, with real small file systems mounted by the test.
#include <sys/mount.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <functional>

#include "tests/e2e/save_trials.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/checkpoint_reader.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// A small file system mounted over the checkpoints of a trial, with their contents copied into it.
class SmallDisk {
 public:
  explicit SmallDisk(fs::path at) : at_(std::move(at)) {}
  ~SmallDisk() {
    if (mounted_) ::umount2(at_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  /// Returns false without permission to mount.
  bool mount(const char* options) {
    const fs::path aside = at_.string() + ".aside";
    fs::rename(at_, aside);
    fs::create_directory(at_);
    mounted_ = ::mount("none", at_.c_str(), "tmpfs", 0, options) == 0;
    if (!mounted_) WARN("skipped: no permission to mount");
    if (mounted_) fs::copy(aside, at_, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    return mounted_;
  }
  void change(unsigned long flags, const char* options) {
    while (::mount("none", at_.c_str(), nullptr, MS_REMOUNT | flags, options) != 0) REQUIRE(errno == EBUSY);  // a save is in progress
  }

 private:
  fs::path at_;
  bool mounted_ = false;
};

/// A long run that saves every 10 steps; `begin` makes the disk unusable in the middle, `end` makes it usable again.
void check_trouble_in_between(const std::function<void()>& begin, const std::function<void()>& end, const TemporaryDirectory& directory,
                              const Arguments& messages) {
  Process process(Arguments{kBinary} + kTrainOnly + sets({"training.steps=1000000", "checkpoint.every=10", "run.directory=trial"}), directory.path());
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
  for (const std::string& name : names_in(directory / "trial/checkpoints"))
    CHECK(name.find('.') == std::string::npos);  // nothing unpublished is left
}

}  // namespace

TEST_CASE("save: a real disk without space for another file, at every stage of a save") {
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
    must(trials.run("trial", {}));
    trials.require_whole();
  }
}

TEST_CASE("save: a disk that fills up and has space again during training") {
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

TEST_CASE("save: a disk that becomes read-only and writable again during training") {
  TemporaryDirectory directory;
  prepare_run(directory);
  fs::create_directories(directory / "trial/checkpoints");
  SmallDisk disk(directory / "trial/checkpoints");
  if (!disk.mount("size=16m")) return;
  check_trouble_in_between([&] { disk.change(MS_RDONLY, "size=16m"); }, [&] { disk.change(0, "size=16m"); }, directory, {"Read-only file system"});
}

TEST_CASE("save: too few file descriptors end a run with a message or have no effect") {
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
