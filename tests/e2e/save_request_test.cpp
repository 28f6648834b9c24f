// Checkpoints on request: SIGUSR2.
#include <csignal>
#include <set>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {}  // namespace

TEST_CASE("save request: SIGUSR2 saves a checkpoint at the end of the step, and the run continues to the same bits") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments train = kTrain + sets({"training.steps=14", "training.sequence_length=128", "training.global_batch_size=32", "checkpoint.every=0",
                                         "training.evaluate.every=0", "data.validation=[]"});
  const auto check_request = [&](const Arguments& launch, const Arguments& command, const std::string& run, int ranks) {
    CAPTURE(run);
    Process process(launch + Arguments{kBinary} + command + in(run), directory.path());
    REQUIRE(process.wait_for("step 3/14"));
    process.signal(SIGUSR2);
    const Outcome outcome = must(process.wait());
    CHECK(outcome.err.find("saving a checkpoint on request after step ") != std::string::npos);
    std::set<std::string> saved = checkpoint_names(directory / run);
    CHECK(saved.size() == 2);  // one for the request, one at the end
    CHECK(saved.contains("step-00000014"));
    const std::string whole = "whole" + std::to_string(ranks);
    if (!fs::exists(directory / whole)) must(directory, command + in(whole));
    CHECK(losses(directory / run, 14) == losses(directory / whole, 14));
    for (int rank = 0; rank < ranks; ++rank) {
      const std::string shard = "checkpoints/step-00000014/rank-0000" + std::to_string(rank) + ".safetensors";
      CHECK(read_file(directory / run / shard) == read_file(directory / whole / shard));
    }
    saved.erase("step-00000014");
    must(directory, {"checkpoint", "verify", run + "/checkpoints/" + *saved.begin()});
  };
  const Arguments two = train + layout(1, 1, 2, 1);
  check_request({}, train, "one", 1);
  check_request({}, two, "two", 2);
  check_request(mpirun_command() + Arguments{"-n", "2"}, two, "under-mpirun", 2);
}

}  // namespace trireme::test
