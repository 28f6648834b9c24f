// Early stopping, and the checkpoints that stay.
#include <algorithm>
#include <set>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

/// Events "early_stop" in metrics.jsonl, without the clock times.
std::vector<nlohmann::json> early_stops(const fs::path& run_directory) {
  std::vector<nlohmann::json> found;
  for (nlohmann::json line : metrics(run_directory)) {
    line.erase("time");
    if (line.value("event", "") == "early_stop") found.push_back(line);
  }
  return found;
}

}  // namespace

TEST_CASE("early stopping: ends a run as finished, also after a resume in another layout or directory") {
  TemporaryDirectory directory;
  prepare_run(directory);
  // No loss is 100 nats better than the first one: evaluations 2 and 3, after steps 4 and 6, do not improve.
  const Arguments command =
      kTrain + sets({"training.steps=9", "training.evaluate.every=2", "checkpoint.every=0", "training.stop.patience=2", "training.stop.minimum=100"});
  const Outcome whole = must(directory, command);
  CHECK(whole.err.find("stopping early after step 6 of 9: the validation loss has not improved by 100 in 2 evaluations since ") != std::string::npos);
  CHECK(whole.err.find("done: 6 of 9 steps") != std::string::npos);
  CHECK(losses(directory / "run", 6).size() == 6);
  CHECK(checkpoint_names(directory / "run") == std::set<std::string>{"step-00000006"});
  REQUIRE(early_stops(directory / "run").size() == 1);
  const nlohmann::json event = early_stops(directory / "run")[0];
  CHECK((event["step"] == 6 && event["without_improvement"] == 2 && event["best_step"] == 2));

  const auto before = directory.listing();
  CHECK(must(directory, command).err.find("nothing to do: 6 of 9 steps are done; the run stopped early: the validation loss") != std::string::npos);
  CHECK(directory.changes_since(before).empty());

  must(directory, command + in("parts") + Arguments{"--max-steps", "4"});  // saved before the evaluation of step 4
  must(directory, command + in("branch") + Arguments{"--resume", "parts/checkpoints/step-00000004"});
  must(directory, command + in("parts") + layout(1, 1, 2, 1) + Arguments{"--max-steps", "5"});
  must(directory, command + in("parts"));
  for (const char* run : {"branch", "parts"}) {
    CAPTURE(run);
    CHECK(early_stops(directory / run) == early_stops(directory / "run"));
    CHECK(checkpoint_names(directory / run).contains("step-00000006"));
    CHECK_FALSE(checkpoint_names(directory / run).contains("step-00000009"));
  }
  must(directory, command + sets({"training.stop.patience=3"}) + Arguments{"--max-steps", "7"});
  CHECK(losses(directory / "run", 7).size() == 7);
}

TEST_CASE("keep_best and keep_every: the best checkpoints and the milestones stay, also across a resume") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments command =
      kTrain + sets({"training.steps=14", "training.evaluate.every=2", "checkpoint.every=2", "checkpoint.keep=1", "checkpoint.keep_best=2",
                     "checkpoint.keep_every=8", "training.optimizer.learning_rate=0.7", "training.schedule.final_learning_rate=5"});
  must(directory, command);
  std::vector<std::pair<double, int64_t>> evaluated;
  for (const nlohmann::json& line : metrics(directory / "run"))
    if (line.contains("validation_loss")) evaluated.emplace_back(line["validation_loss"].get<double>(), line["step"].get<int64_t>());
  std::sort(evaluated.begin(), evaluated.end());
  REQUIRE(evaluated.size() == 7);
  REQUIRE((evaluated[0].second < 8 && evaluated[1].second < 8));  // the learning rate diverges: neither is a milestone or the newest
  const auto name = [](int64_t step) { return std::string(step < 10 ? "step-0000000" : "step-000000") + std::to_string(step); };
  const std::set<std::string> expected{name(evaluated[0].second), name(evaluated[1].second), name(8), name(14)};
  CHECK(checkpoint_names(directory / "run") == expected);
  const auto inspected = [&](int64_t step) {
    return nlohmann::json::parse(must(directory, {"checkpoint", "inspect", "--json", "run/checkpoints/" + name(step)}).out);
  };
  CHECK(inspected(evaluated[0].second)["validation_loss"] == evaluated[0].first);
  CHECK(inspected(evaluated[0].second)["best"] == true);
  CHECK(inspected(evaluated[1].second)["best"] == false);
  must(directory, {"checkpoint", "verify", "run/checkpoints/" + name(evaluated[0].second)});

  for (const char* steps : {"4", "6", "10"}) must(directory, command + in("parts") + Arguments{"--max-steps", steps});
  must(directory, command + in("parts") + layout(1, 1, 2, 1));
  CHECK(checkpoint_names(directory / "parts").size() == checkpoint_names(directory / "run").size());
  must(directory, command + in("synchronous") + sets({"checkpoint.asynchronous=false"}));
  CHECK(checkpoint_names(directory / "synchronous") == expected);
}

}  // namespace trireme::test
