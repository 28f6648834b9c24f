// Data that must not be lost, overwritten or mixed up.
#include <algorithm>
#include <csignal>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

void flip_bit_at(const fs::path& path, size_t at) {
  std::string bytes = read_file(path);
  bytes.at(at) = static_cast<char>(bytes.at(at) ^ 1);
  write_file(path, bytes);
}

void flip_last_bit(const fs::path& path) { flip_bit_at(path, fs::file_size(path) - 1); }

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
      check_error(outcome, 74, "could not be saved");
    }
  }
}

TEST_CASE("keep: a second job in the same run directory is refused without effect on the first") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments here =
      kTrain + sets({"run.directory=run", "training.steps=100000", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"});
  Process first(Arguments{kBinary} + here, directory.path());
  REQUIRE(first.wait_for("step 3/"));
  check_error(run(directory, here), 64, "another job is training there");
  first.signal(SIGTERM);
  CHECK(first.wait().code == 75);
  const std::vector<nlohmann::json> lines = metrics(directory / "run");
  const auto last = std::find_if(lines.rbegin(), lines.rend(), [](const nlohmann::json& line) { return line.contains("loss"); });
  REQUIRE(last != lines.rend());
  losses(directory / "run", (*last)["step"].get<size_t>());
}

TEST_CASE("keep: a checkpoint from elsewhere is not mixed with those of a different run") {
  TemporaryDirectory directory;
  prepare_run(directory);
  REQUIRE(run(directory, kTrain + sets({"run.directory=one"})).code == 0);
  REQUIRE(run(directory, kTrain + sets({"run.directory=other"}) + Arguments{"--resume", "one/checkpoints/step-00000002"}).code == 0);
  CHECK(validation_loss(directory / "other") == validation_loss(directory / "one"));
  const auto before = directory.listing();
  check_error(run(directory, kTrain + sets({"run.directory=other"}) + Arguments{"--resume", "one/checkpoints/step-00000002"}), 64,
              "run.directory=other already contains checkpoints from a different history of this run");
  CHECK(directory.changes_since(before).empty());
}

TEST_CASE("keep: a finished run is not changed, except that leftovers of a kill at its end are removed") {
  TemporaryDirectory directory;
  prepare_run(directory);
  REQUIRE(run(directory, kTrain).code == 0);
  const auto before = directory.listing();
  check_error(run(directory, kTrain), 0, "nothing to do: 6 of 6 steps are done");
  CHECK(directory.changes_since(before).empty());
  fs::create_directories(directory / "run/checkpoints/step-00000002.1-0.partial/half removed");
  check_error(run(directory, kTrain), 0, "nothing to do: 6 of 6 steps are done");
  CHECK_FALSE(fs::exists(directory / "run/checkpoints/step-00000002.1-0.partial"));
}

TEST_CASE("keep: an evaluation that a kill prevented is done after a resume") {
  TemporaryDirectory directory;
  prepare_run(directory);
  REQUIRE(run(directory, kTrain).code == 0);
  const double expected = validation_loss(directory / "run");
  std::string text = read_file(directory / "run/metrics.jsonl");
  write_file(directory / "run/metrics.jsonl", text.substr(0, text.find("{\"step\":6,\"validation_loss\"")));
  REQUIRE(validation_loss(directory / "run") != expected);  // that of step 3
  check_error(run(directory, kTrain), 0, "done: 6 of 6 steps");
  CHECK(validation_loss(directory / "run") == expected);
  losses(directory / "run", 6);
}

TEST_CASE("keep: missing checkpoints are not mistaken for a run that has never saved") {
  for (const Arguments& ranks : {layout(1, 1, 1, 0), layout(1, 1, 2, 1)}) {
    TemporaryDirectory directory;
    prepare_run(directory);
    must(directory, kTrain + ranks + Arguments{"--max-steps", "4"});
    fs::rename(directory / "run/checkpoints", directory / "elsewhere");  // like an unmounted file system
    fs::create_directory(directory / "run/checkpoints");
    auto before = directory.listing();
    check_error(run(directory, kTrain + ranks), 66, "run/metrics.jsonl records step-00000004, and run/checkpoints contains no checkpoint");
    CHECK(directory.changes_since(before).empty());
    fs::remove(directory / "run/checkpoints");
    before = directory.listing();
    check_error(run(directory, kTrain + ranks), 66, "start over with --resume never");
    CHECK(directory.changes_since(before).empty());
    fs::rename(directory / "elsewhere", directory / "run/checkpoints");
    must(directory, kTrain + ranks + Arguments{"--max-steps", "5"});
    losses(directory / "run", 5);

    const std::string written = read_file(directory / "run/metrics.jsonl");
    fs::remove_all(directory / "run/checkpoints");
    const Outcome over = must(directory, kTrain + ranks + Arguments{"--resume", "never"});
    check_error(over, 0, "starting over: the previous run saved no checkpoint here; its metrics were renamed to run/metrics-1.jsonl");
    CHECK(read_file(directory / "run/metrics-1.jsonl") == written);
    losses(directory / "run", 6);
  }
}

TEST_CASE("keep: a run killed before its first checkpoint starts over, and keeps its metrics") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments here = kTrain + sets({"training.steps=100000", "training.evaluate.every=0", "data.validation=[]", "checkpoint.every=0"});
  Process process(Arguments{kBinary} + here, directory.path());
  REQUIRE(process.wait_for("step 3/"));
  process.signal(SIGKILL);
  process.wait();
  const std::string written = read_file(directory / "run/metrics.jsonl");
  const Outcome over = must(directory, here + Arguments{"--max-steps", "2"});
  check_error(over, 0, "starting over: the previous run saved no checkpoint here; its metrics were renamed to run/metrics-1.jsonl");
  CHECK(read_file(directory / "run/metrics-1.jsonl") == written);
  losses(directory / "run", 2);
  const Outcome on = must(directory, here + Arguments{"--max-steps", "3"});
  CHECK(on.err.find("starting over") == std::string::npos);
  CHECK_FALSE(fs::exists(directory / "run/metrics-2.jsonl"));
}

TEST_CASE("keep: a run is not resumed from a checkpoint renamed to a different step") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + Arguments{"--max-steps", "4"});
  fs::rename(directory / "run/checkpoints/step-00000004", directory / "run/checkpoints/step-00000009");
  fs::remove(directory / "run/checkpoints/latest");
  const std::string problem = "run/checkpoints/step-00000009: the manifest says step 4; expected directory name step-00000004";
  const auto before = directory.listing();
  check_error(run(directory, kTrain + Arguments{"--resume", "run/checkpoints/step-00000009"}), 65, problem);
  check_error(run(directory, {"checkpoint", "verify", "run/checkpoints/step-00000009"}), 65, problem);
  check_error(run(directory, {"checkpoint", "inspect", "run/checkpoints/step-00000009"}), 0, "warning: " + problem);
  CHECK(directory.changes_since(before).empty());
  const Outcome on = must(directory, kTrain);
  check_error(on, 0, "warning: skipping run/checkpoints/step-00000009: " + problem);
  check_error(on, 0, "resuming from run/checkpoints/step-00000002");
  losses(directory / "run", 6);
}

TEST_CASE("keep: resume refuses changed data, and a run without a readable checkpoint") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments here = kTrain + sets({"run.directory=run", "training.steps=4", "training.schedule.warmup_steps=0", "checkpoint.every=2"});
  REQUIRE(run(directory, here + Arguments{"--max-steps", "2"}).code == 0);
  const std::string written = read_file(directory / "run/metrics.jsonl");

  flip_last_bit(directory / "train/tokens.bin");
  check_error(run(directory, here), 65, "contains different tokens");
  flip_last_bit(directory / "train/tokens.bin");

  const fs::path shard = directory / "run/checkpoints/latest/rank-00000.safetensors";
  flip_last_bit(shard);
  check_error(run(directory, here), 65, "rank-00000.safetensors");
  // The last tensor is a moment, which is read only by training.
  const Arguments generate = {"generate", "--checkpoint", "run/checkpoints/latest", "--prompt", "a"};
  CHECK(run(directory, generate).code == 0);
  flip_last_bit(shard);
  const auto manifest = nlohmann::json::parse(read_file(directory / "run/checkpoints/latest/manifest.json"));
  const size_t weight = manifest["tensors"]["weight/embedding.weight"]["boxes"][0]["bytes"][0];
  flip_bit_at(shard, weight);
  check_error(run(directory, generate), 65, "rank-00000.safetensors: tensor \"weight/embedding.weight\": damaged");
  flip_bit_at(shard, weight);

  const std::string bytes = read_file(shard);
  write_file(shard, bytes.substr(1));
  check_error(run(directory, here), 65, "no checkpoint in");
  check_error(run(directory, here), 65, "; move them away and use --resume never to start over");
  write_file(shard, bytes);

  check_error(run(directory, here + Arguments{"--resume", ""}), 64, "--resume");
  CHECK(read_file(directory / "run/metrics.jsonl") == written);
  CHECK(run(directory, here).code == 0);
  losses(directory / "run", 4);
}

}  // namespace trireme::test
