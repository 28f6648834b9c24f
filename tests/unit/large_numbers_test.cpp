// Runs that are longer than any test: a hundred million steps, a hundred restarts.
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/resilience/restart_policy.h"

namespace trireme::test {

TEST_CASE("checkpoint: a step of nine digits is newer than one of eight") {
  const TemporaryDirectory directory;
  const std::filesystem::path checkpoints = directory.path / "checkpoints";
  for (const char* name : {"step-00000007", "step-99999999", "step-100000000", "step-100000002"})
    std::filesystem::create_directories(checkpoints / name);
  const auto names = [&] {
    std::vector<std::string> found;
    for (const std::filesystem::path& path : checkpoints_of(directory.path)) found.push_back(path.filename().string());
    return found;
  };
  CHECK(names() == std::vector<std::string>{"step-100000002", "step-100000000", "step-99999999", "step-00000007"});
  std::filesystem::create_symlink("step-99999999", checkpoints / "latest");  // the two newer ones belong to a different history of the run
  CHECK(names().front() == "step-99999999");
}

TEST_CASE("restart policy: the delay stays at its maximum for any number of consecutive restarts") {
  RestartPolicy policy(200);
  for (int64_t step = 1; step <= 150; ++step) {
    CAPTURE(step);
    const RestartPolicy::Decision decision = policy.after({step, 0});
    REQUIRE(decision.delay);
    if (step > 8) CHECK(*decision.delay == std::chrono::seconds(60));
  }
}

}  // namespace trireme::test
