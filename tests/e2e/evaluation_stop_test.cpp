// Stop requests while a run evaluates.
#include <csignal>
#include <thread>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// (step, validation loss) of every evaluation.
std::vector<std::pair<int64_t, double>> evaluations(const fs::path& run_directory) {
  std::vector<std::pair<int64_t, double>> found;
  for (const nlohmann::json& line : metrics(run_directory))
    if (line.contains("validation_loss")) found.emplace_back(line["step"].get<int64_t>(), line["validation_loss"].get<double>());
  return found;
}

/// The data of prepare_run, with a validation set of about 1,600 batches of 8 x 16 tokens: its evaluation takes tenths of a second.
void prepare_long_evaluation(const TemporaryDirectory& directory) {
  prepare_run(directory);
  std::string text;
  while (text.size() < 200'000) text += read_file(directory / "validation.txt");
  write_file(directory / "long.txt", text);
  must(directory, {"data", "build", "--output", "long", "long.txt"});
}

/// Stops `command` in the evaluation of step 3 and resumes it; `whole` is an undisturbed run of it.
void check_stop(const TemporaryDirectory& directory, const Arguments& command, const std::string& run, const std::string& whole, size_t ranks) {
  CAPTURE(run);
  Process process(Arguments{kBinary} + command + in(run), directory.path());
  REQUIRE(process.wait_for("step 3/4"));
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  process.signal(SIGTERM);
  const Outcome stopped = process.wait();
  INFO(stopped.err);
  REQUIRE(stopped.code == 75);
  CHECK(stopped.err.find("stopped on request after step 3 before the end of its evaluation, checkpoint saved; rerun") != std::string::npos);
  CHECK(evaluations(directory / run).empty());
  CHECK(fs::read_symlink(directory / run / "checkpoints/latest") == "step-00000003");

  must(directory, command + in(run));
  CHECK(losses(directory / run, 4) == losses(directory / whole, 4));
  CHECK(evaluations(directory / run) == evaluations(directory / whole));
  for (size_t rank = 0; rank < ranks; ++rank) {
    const std::string shard = "checkpoints/step-00000004/rank-0000" + std::to_string(rank) + ".safetensors";
    CHECK(read_file(directory / run / shard) == read_file(directory / whole / shard));
  }
}

}  // namespace

TEST_CASE("stop: an evaluation ends between two batches, and is repeated after the resume") {
  TemporaryDirectory directory;
  prepare_long_evaluation(directory);
  const Arguments train = Arguments{"train", "run.yaml"} + sets({"training.steps=4", "data.validation=[long]"});
  const Arguments one = train + sets({"checkpoint.every=0"});
  const Outcome whole = must(directory, one + in("one"));
  CHECK(whole.err.find("evaluation every 3 steps and at the end: 1565 batches, 200199 tokens, all validation data; training.evaluate.batches") !=
        std::string::npos);
  REQUIRE(evaluations(directory / "one").size() == 2);
  check_stop(directory, one, "one-stopped", "one", 1);
  check_stop(directory, train + sets({"checkpoint.every=3"}), "one-saved", "one", 1);  // step 3 is saved before its evaluation
  const Arguments two = one + layout(1, 1, 2, 1) +  // larger batches, as ranks that share a core wait for each other in each of them
                        sets({"training.sequence_length=128", "training.global_batch_size=32", "training.evaluate.batches=40"});
  CHECK(must(directory, two + in("two")).err.find(": 40 batches, 163840 tokens") != std::string::npos);
  check_stop(directory, two, "two-stopped", "two", 2);
}

TEST_CASE("stop: the last evaluation of a run is missing after a stop, and a resume makes it") {
  TemporaryDirectory directory;
  prepare_long_evaluation(directory);
  const Arguments command = Arguments{"train", "run.yaml"} + sets({"training.steps=3", "data.validation=[long]"}) + in("run");
  Process process(Arguments{kBinary} + command, directory.path());
  REQUIRE(process.wait_for("step 3/3"));
  process.signal(SIGTERM);
  CHECK(must(process.wait(), 75).err.find("stopped on request after step 3 before the end of its evaluation") != std::string::npos);
  const Outcome again = must(directory, command);
  CHECK(again.err.find("done: 3 of 3 steps") != std::string::npos);
  CHECK(evaluations(directory / "run").size() == 1);
}

}  // namespace trireme::test
