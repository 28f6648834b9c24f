// Runs whose steps are rejected repeatedly: they end with an error and keep the good checkpoints.
#include <algorithm>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;
using nlohmann::json;

/// The first step destroys the weights, and every later one is rejected.
const Arguments kDiverges = kTrainOnly + sets({"training.steps=40", "training.optimizer.learning_rate=1.0e+10", "training.gradient_clip=0",
                                               "training.schedule.warmup_steps=0", "checkpoint.every=1", "checkpoint.keep=2"});

std::vector<std::string> checkpoints_in(const fs::path& run_directory) {
  std::vector<std::string> names;
  for (const auto& item : fs::directory_iterator(run_directory / "checkpoints"))
    if (!item.is_symlink()) names.push_back(item.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

size_t steps_in(const fs::path& run_directory) {
  size_t steps = 0;
  for (const json& line : metrics(run_directory)) steps += line.contains("loss") ? 1 : 0;
  return steps;
}

}  // namespace

TEST_CASE("diverged: twenty consecutive rejected steps end the run with exit code 70, and the first checkpoint is kept") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const auto& [name, ranks] : {std::pair{"one", layout(1, 1, 1, 0)}, {"four", layout(1, 2, 2, 1)}}) {
    CAPTURE(name);
    const Outcome ended = must(directory, kDiverges + ranks + in(name), 70);
    INFO(ended.err);
    CHECK(count(ended.err, "training has diverged: 20 steps in a row were rejected, the last of them step 21, because ") == 1);
    CHECK_THAT(ended.err, Contains("(training.max_rejected_steps=20). Start another run with a lower training.optimizer.learning_rate"));
    CHECK(steps_in(directory / name) == 21);
    CHECK(checkpoints_in(directory / name) == std::vector<std::string>{"step-00000001", "step-00000019", "step-00000020"});
    const std::vector<json> lines = metrics(directory / name);
    CHECK(std::count_if(lines.begin(), lines.end(), [](const json& line) { return line.value("event", "") == "diverged"; }) == 1);
    // The count is saved: the same command ends soon.
    const Outcome again = must(directory, kDiverges + ranks + in(name), 70);
    CHECK_THAT(again.err, Contains("20 steps in a row were rejected, the last of them step 21"));
    CHECK(checkpoints_in(directory / name) == std::vector<std::string>{"step-00000001", "step-00000019", "step-00000020"});
  }
}

TEST_CASE("diverged: the message names a checkpoint from before, and a new run starts from its weights") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // Twenty good steps, then an exploding learning rate.
  const Outcome ended = must(
      directory,
      kTrainOnly + sets({"training.steps=60", "training.schedule.name=wsd", "training.schedule.decay_steps=40",
                         "training.schedule.final_learning_rate=1.0e+12", "training.gradient_clip=0", "checkpoint.every=5", "checkpoint.keep=2"}),
      70);
  INFO(ended.err);
  CHECK_THAT(ended.err, Contains("; training.initial_weights=run/checkpoints/step-00000020 starts it from weights saved before the divergence\n"));
  const std::vector<std::string> left = checkpoints_in(directory / "run");
  CHECK(left.size() >= 3);
  CHECK(left.front() == "step-00000020");
  const Outcome other = must(directory, kTrainOnly + in("other") + sets({"training.initial_weights=run/checkpoints/step-00000020"}));
  CHECK_THAT(other.err, !Contains("rejected") && !Contains("non-finite"));
}

TEST_CASE("diverged: the launcher does not restart a diverged run") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const auto& [name, ranks] : {std::pair{"one", layout(1, 1, 1, 0)}, {"two", layout(1, 1, 2, 1)}}) {
    const Outcome ended = must(directory, kDiverges + ranks + in(name) + Arguments{"--restarts", "3"}, 70);
    INFO(ended.err);
    CHECK(count(ended.err, "training has diverged: ") == 1);
    CHECK_THAT(ended.err, Contains("giving up: the run diverged and would diverge again\n") && !Contains("restart 1 of 3"));
  }
}

TEST_CASE("diverged: rejected steps before a stop count, and the limit may be changed") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome first = must(directory, kDiverges + Arguments{"--max-steps", "10"});
  CHECK_THAT(first.err, Contains("warning: at the end of the run, 9 steps in a row were rejected, the last of them step 10"));
  must(directory, kDiverges, 70);
  CHECK(steps_in(directory / "run") == 21);
  must(directory, kDiverges + sets({"training.max_rejected_steps=0"}));
  CHECK(steps_in(directory / "run") == 40);
}

TEST_CASE("diverged: overflows at the minimal loss scale count, those at a larger one do not") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments fp16 = kTrainOnly + sets({"training.steps=30", "training.precision=fp16", "training.loss_scale.maximum=1073741824",
                                            "training.loss_scale.initial=1073741824", "training.max_rejected_steps=4"});
  const Outcome falling = must(directory, fp16 + in("falling"));
  CHECK_THAT(falling.err, !Contains("rejected"));
  size_t overflows = 0;
  for (const json& line : metrics(directory / "falling")) overflows += line.value("event", "") == "overflow" ? 1 : 0;
  CHECK(overflows > 4);
  const Outcome ended = must(directory, fp16 + in("floor") + sets({"training.loss_scale.minimum=536870912"}), 70);
  CHECK_THAT(ended.err, Contains("4 steps in a row were rejected, the last of them step 5, because the gradient of ") &&
                            Contains(", or with a smaller training.loss_scale.minimum"));
}

TEST_CASE("diverged: a state that is not finite is never published, and the run does not end with success") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments spoils = kTrainOnly + sets({"training.schedule.warmup_steps=0", "training.optimizer.learning_rate=1.0e+300"});
  for (const auto& [name, ranks] : {std::pair{"one", layout(1, 1, 1, 0)}, {"four", layout(2, 1, 2, 1)}}) {
    CAPTURE(name);
    const Outcome ended = must(directory, spoils + ranks + in(name) + Arguments{"--max-steps", "1"}, 70);
    INFO(ended.err);
    CHECK_THAT(ended.err, Contains("checkpoint of step 1 was not saved: the state is not finite: ") &&
                              Contains("training has diverged: the state after step 1 is not finite, so no checkpoint of it was published"));
    CHECK(checkpoints_in(directory / name).empty());
  }
  // Checkpoints from before stay, and the limit of rejected steps ends the run.
  const Arguments late = kTrainOnly + in("late") +
                         sets({"training.schedule.name=exponential", "training.schedule.warmup_steps=2",
                               "training.schedule.final_learning_rate=1.0e+300", "checkpoint.every=1"});
  must(directory, late, 70);
  for (const std::string& checkpoint : checkpoints_in(directory / "late"))
    must(directory, {"checkpoint", "verify", (fs::path("late/checkpoints") / checkpoint).string()});
}

TEST_CASE("diverged: a run of which every step was rejected does not end with success, and starts again from its beginning") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // Weights near the largest number: the loss is not finite from the first step on.
  const Arguments hopeless = kTrainOnly + sets({"model.init_std=1.0e+30", "training.steps=4", "training.max_rejected_steps=0"});
  for (const auto& [name, ranks] : {std::pair{"one", layout(1, 1, 1, 0)}, {"two", layout(1, 1, 2, 1)}})
    for (int attempt = 0; attempt < 2; ++attempt) {
      CAPTURE(name, attempt);
      const Outcome ended = must(directory, hopeless + ranks + in(name) + sets({"checkpoint.every=0"}), 70);
      INFO(ended.err);
      CHECK(count(ended.err, "nothing was trained: every step of this run up to step 4 was rejected, because ") == 1);
      CHECK(checkpoints_in(directory / name).empty());
    }
  // Overflows alone are no training either, if the run has no accepted step.
  const Arguments fp16 = kTrainOnly + sets({"training.precision=fp16", "training.loss_scale.maximum=1073741824", "training.steps=2",
                                            "training.loss_scale.initial=1073741824"});
  check_error(run(directory, fp16 + in("overflow")), 70, "lower training.loss_scale.initial");
}

}  // namespace trireme::test
