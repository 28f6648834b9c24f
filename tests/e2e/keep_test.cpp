// What must not be lost, overwritten or taken for something else.
#include <csignal>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kTrain = {"train", "run.yaml"};

/// Flips the lowest bit of the last byte.
void flip_last_bit(const fs::path& path) {
  std::string bytes = read_file(path);
  bytes.back() = static_cast<char>(bytes.back() ^ 1);
  write_file(path, bytes);
}

void check(const Outcome& outcome, int code, const std::string& words) {
  INFO(outcome.err);
  CHECK(outcome.code == code);
  CHECK(outcome.err.find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("keep: a last checkpoint that cannot be saved is an error, not a success") {
  for (const char* asynchronous : {"true", "false"}) {
    for (const Arguments& ranks : {layout(1, 1, 1, 0), layout(1, 1, 2, 3)}) {
      TemporaryDirectory directory;
      prepare_run(directory);
      fs::create_directories(directory / "run/checkpoints/latest/in the way");
      const Outcome outcome = run(directory, kTrain + ranks +
                                                 sets({"run.directory=run", "training.steps=2", "training.schedule.warmup_steps=0",
                                                       std::string("checkpoint.asynchronous=") + asynchronous}));
      check(outcome, 74, "could not be saved");
    }
  }
}

TEST_CASE("keep: a second job in the same run directory is refused and harms nothing") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments here =
      kTrain + sets({"run.directory=run", "training.steps=100000", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"});
  Process first(Arguments{kBinary} + here, directory.path());
  REQUIRE(first.wait_for("step 3/"));
  check(run(directory, here), 64, "another job trains there");
  first.signal(SIGTERM);
  CHECK(first.wait().code == 75);
  losses(directory / "run", metrics(directory / "run").back()["step"].get<size_t>());
}

TEST_CASE("keep: resume refuses data that has changed, and checkpoints of which none can be read") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments here = kTrain + sets({"run.directory=run", "training.steps=4", "training.schedule.warmup_steps=0", "checkpoint.every=2"});
  REQUIRE(run(directory, here + Arguments{"--max-steps", "2"}).code == 0);
  const std::string written = read_file(directory / "run/metrics.jsonl");

  flip_last_bit(directory / "train/tokens.bin");
  check(run(directory, here), 65, "holds other tokens");
  flip_last_bit(directory / "train/tokens.bin");

  const fs::path shard = directory / "run/checkpoints/latest/rank-00000.safetensors";
  flip_last_bit(shard);
  check(run(directory, here), 65, "rank-00000.safetensors");
  check(run(directory, {"generate", "--checkpoint", "run/checkpoints/latest", "--prompt", "a"}), 65, "digest");
  flip_last_bit(shard);

  const std::string bytes = read_file(shard);
  write_file(shard, bytes.substr(1));
  check(run(directory, here), 65, "no checkpoint in");
  write_file(shard, bytes);

  check(run(directory, here + Arguments{"--resume", ""}), 64, "--resume");
  CHECK(read_file(directory / "run/metrics.jsonl") == written);
  CHECK(run(directory, here).code == 0);
  losses(directory / "run", 4);
}

}  // namespace trireme::test
