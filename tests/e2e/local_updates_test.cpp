// Local updates from the command line: islands of ranks, rounds, checkpoints, and what a run says of them.
#include <algorithm>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

const Arguments kIslands = kTrainOnly + sets({"parallel.islands=2", "training.local.steps=3", "training.steps=8", "checkpoint.every=3",
                                              "checkpoint.keep=10", "training.schedule.warmup_steps=0"});

std::string state_of(const fs::path& run_directory, const std::string& step) {
  const fs::path checkpoint = run_directory / "checkpoints" / ("step-000000" + step);
  std::string all;
  for (const std::string& name : names_in(checkpoint))
    if (name.ends_with(".safetensors")) all += read_file(checkpoint / name);
  return all;
}

}  // namespace

TEST_CASE("local updates: a run in rounds, stopped and resumed, has the bits of one that was not") {
  TemporaryDirectory directory;
  prepare_run(directory);
  for (const Arguments& island : {layout(1, 1, 2, 1), layout(2, 1, 1, 0)}) {
    must(directory, kIslands + island + in("whole"));
    check_error(must(directory, kIslands + island + in("parts") + Arguments{"--max-steps", "2"}), 0, "done: 3 of 8 steps");
    must(directory, kIslands + island + in("parts"));
    CHECK(losses(directory / "whole", 8) == losses(directory / "parts", 8));
    CHECK(state_of(directory / "whole", "08") == state_of(directory / "parts", "08"));
    CHECK(checkpoint_names(directory / "whole") == std::set<std::string>{"step-00000003", "step-00000006", "step-00000008"});
    // The last round has two steps.
    std::vector<double> bytes;
    for (const nlohmann::json& line : metrics(directory / "whole")) {
      if (line.contains("event") || !line.contains("loss")) continue;
      const auto step = line["step"].get<int>();
      INFO(step);
      CHECK(line.contains("outer_grad_norm") == (step == 3 || step == 6 || step == 8));
      if (line.contains("drift")) CHECK((line["drift"] > 0 && line["outer_bytes"] > 0));
      if (line.contains("outer_bytes")) bytes.push_back(line["outer_bytes"].get<double>());
    }
    CHECK((bytes.size() == 3 && std::ranges::count(bytes, bytes[0]) == 3));  // every round sends the same
    fs::remove_all(directory / "whole");
    fs::remove_all(directory / "parts");
  }
}

TEST_CASE("local updates: a checkpoint of islands is evaluated and exported as any other") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments evaluated = Arguments{"train", "run.yaml"} + sets({"parallel.islands=2", "training.local.steps=2", "training.steps=4",
                                                                     "training.evaluate.every=2", "checkpoint.every=2"});
  must(directory, evaluated + in("run"));
  const Arguments eval = {"eval", "run.yaml", "--json", "--checkpoint", "run"};
  const double loss = nlohmann::json::parse(must(directory, eval).out)["validation_loss"];
  CHECK(loss == Approx(validation_loss(directory / "run")).epsilon(1e-6));
  must(directory, exporting("run", "out"));
  check(run(directory, {"checkpoint", "verify", "run/checkpoints/step-00000004"}), 0, "");
  CHECK(must(directory, {"checkpoint", "inspect", "run/checkpoints/step-00000004"}).out.find("exp_avg.1/") != std::string::npos);
}

TEST_CASE("local updates: fragments with sums in flight, stopped and resumed, and evaluated by the shared weights") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments streaming =
      Arguments{"train", "run.yaml"} + layout(1, 1, 2, 3) +
      sets({"parallel.islands=2", "training.local.steps=4", "training.local.fragments=2", "training.local.delay=1", "training.local.blend=0.5",
            "training.steps=10", "training.evaluate.every=4", "checkpoint.every=4", "checkpoint.keep=10"});
  must(directory, streaming + in("whole"));
  check_error(must(directory, streaming + in("parts") + Arguments{"--max-steps", "3"}), 0, "done: 4 of 10 steps");
  must(directory, streaming + in("parts"));
  CHECK(losses(directory / "whole", 10) == losses(directory / "parts", 10));
  for (const char* const step : {"08", "10"}) CHECK(state_of(directory / "whole", step) == state_of(directory / "parts", step));
  for (const nlohmann::json& line : metrics(directory / "whole"))
    if (!line.contains("event") && line.contains("loss")) CHECK(line.contains("outer_grad_norm") == (line["step"].get<int>() % 2 == 0));
  // In the middle of the run the islands differ, and the evaluation is that of the weights in the checkpoint.
  CHECK(must(directory, {"checkpoint", "inspect", "whole/checkpoints/step-00000008"}).out.find("island_weight.1/") != std::string::npos);
  const Arguments eval = {"eval", "run.yaml", "--json", "--checkpoint", "whole/checkpoints/step-00000008"};
  const double loss = nlohmann::json::parse(must(directory, eval).out)["validation_loss"];
  for (const nlohmann::json& line : metrics(directory / "whole"))
    if (line.contains("validation_loss") && line["step"] == 8) CHECK(loss == Approx(line["validation_loss"].get<double>()).epsilon(1e-6));
}

TEST_CASE("local updates: a resume with another number of islands is refused") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kIslands + in("run") + Arguments{"--max-steps", "3"});
  const std::vector<std::string> before = directory.listing();
  check_error(run(directory, kIslands + sets({"parallel.islands=1"}) + in("run")), 64, "parallel.islands");
  check_error(run(directory, kIslands + sets({"parallel.islands=4"}) + in("run") + Arguments{"--change", "parallel.islands"}), 64,
              "the checkpoint contains the optimizer state of each of its islands");
  CHECK(directory.changes_since(before) == "");
  must(directory,
       kIslands + sets({"training.local.outer_learning_rate=0.5"}) + in("run") + Arguments{"--change", "training.local.outer_learning_rate"});
}

TEST_CASE("local updates: forecasts that know one island refuse several, and plan counts the outer step") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments islands = kNoEvaluation + sets({"parallel.islands=2", "training.local.steps=10", "checkpoint.every=0"});
  const nlohmann::json plan = nlohmann::json::parse(must(directory, Arguments{"plan", "run.yaml", "--json"} + islands).out);
  CHECK(plan["local"]["steps"] == 10);
  CHECK(plan["local"]["outer_bytes"] > 0);
  CHECK(10 * plan["local"]["bytes_per_step"].get<double>() == Approx(plan["local"]["outer_bytes"].get<double>()));
  // The seconds of the outer step are shared by the steps of a round.
  const auto step_seconds = [&](const std::string& steps) {
    const Arguments rounds = islands + sets({"training.local.steps=" + steps});
    return nlohmann::json::parse(must(directory, Arguments{"plan", "run.yaml", "--json"} + rounds).out)["step_seconds"].get<double>();
  };
  const double every = step_seconds("1"), second = step_seconds("2"), fourth = step_seconds("4");
  CHECK(every - second == Approx(2 * (second - fourth)).epsilon(1e-6));
  CHECK(every - second > 1e-6);
  check_error(run(directory, Arguments{"plan", "run.yaml", "--search"} + islands), 64, "parallel.islands=2: --search knows one island; allowed 1");
  check_error(run(directory, Arguments{"plan", "run.yaml", "--analyse"} + islands), 64, "parallel.islands=2: --analyse knows one island");
  check_error(run(directory, Arguments{"bench", "scale", "run.yaml"} + islands), 64, "bench scale: parallel.islands=2");
  check(run(directory, Arguments{"verify", "run.yaml", "--layouts", "tp2"} + islands), 0, "as one island without training.local");
}

}  // namespace trireme::test
