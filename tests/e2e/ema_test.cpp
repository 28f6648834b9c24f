// The moving average of the weights from the command line: maintained by a run, read by eval, generate and export.
#include <cmath>
#include <map>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/huggingface/weight_source.h"

namespace fs = std::filesystem;

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;
using Weights = std::map<std::string, std::vector<double>>;

const Arguments kTrainForAverage = Arguments{"train", "run.yaml"} + sets({"training.schedule.warmup_steps=0", "model.dropout=0",
                                                                          "training.evaluate.every=0", "checkpoint.every=1", "checkpoint.keep=100"});
constexpr double kDecay = 0.15;

Weights weights_in(const fs::path& path) {
  WeightSource source(path);
  Weights weights;
  for (const std::string& name : source.names()) {
    const std::array<int64_t, 2> shape = source.shape(name);
    weights[name].resize(static_cast<size_t>(shape[0] * shape[1]));
    source.read(name, {{0, 0}, shape}, DType::kF64, weights[name].data());
  }
  return weights;
}

fs::path step_of(const TemporaryDirectory& directory, const std::string& name, int step) {
  return directory / name / "checkpoints" / checkpoint_name(step);
}

}  // namespace

TEST_CASE("ema: eval, generate and export read the average of the weights of all steps") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainForAverage + sets({"training.steps=1"}) + in("first"));
  const Arguments average = sets({"training.steps=4", "training.initial_weights=first", "training.ema.decay=" + std::to_string(kDecay)});
  must(directory, kTrainForAverage + average + layout(2, 2, 2, 3) + in("run"));

  check(run(directory, exporting("run", "out") + Arguments{"--weights", "ema"}), 0,
        "wrote out from the moving average of run/checkpoints/step-00000004: ");
  Weights expected = weights_in(directory / "first");
  for (int t = 0; t < 4; ++t) {
    const double d = std::min(kDecay, (1.0 + t) / (10.0 + t));
    const Weights weights = weights_in(step_of(directory, "run", t + 1));
    for (auto& [name, values] : expected)
      for (size_t i = 0; i < values.size(); ++i) values[i] = d * values[i] + (1 - d) * weights.at(name)[i];
  }
  const Weights exported = weights_in(directory / "out");
  CHECK(exported.size() == expected.size());
  for (const auto& [name, values] : expected) {
    INFO(name);
    double worst = 0;
    for (size_t i = 0; i < values.size(); ++i) worst = std::max(worst, std::abs(exported.at(name)[i] - values[i]));
    CHECK(worst < 1e-6);
  }
  check(run(directory, exporting("run", "half") + Arguments{"--weights", "ema", "--dtype", "bf16"}), 0,
        "with its weights rounded to bf16, bit for bit");
  must(directory, exporting("run", "trained"));
  must(directory, exporting("run", "same") + Arguments{"--weights", "trained"});
  CHECK(read_file(directory / "trained/model.safetensors") == read_file(directory / "same/model.safetensors"));
  CHECK(read_file(directory / "trained/model.safetensors") != read_file(directory / "out/model.safetensors"));
  CHECK(weights_in(directory / "trained") == weights_in(step_of(directory, "run", 4)));

  const auto evaluated = [&](const std::string& checkpoint, const Arguments& more) {
    return must(directory, Arguments{"eval", "run.yaml", "--json", "--checkpoint", checkpoint} + more).out;
  };
  CHECK(evaluated("run", {"--weights", "ema"}) == evaluated("out", {}));
  CHECK(evaluated("run", {"--weights", "trained"}) == evaluated("run", {}));
  CHECK(evaluated("run", {}) == evaluated("trained", {}));
  CHECK(evaluated("run", {}) != evaluated("out", {}));
  const auto generated = [&](const std::string& checkpoint, const Arguments& more) {
    return must(directory, Arguments{"generate", "--prompt", "Ship", "--max-tokens", "60", "--checkpoint", checkpoint} + more).out;
  };
  CHECK(generated("run", {"--weights", "ema"}) == generated("out", {}));
  CHECK(generated("run", {"--weights", "ema", "--tensor", "2"}) == generated("out", {"--tensor", "2"}));
  CHECK(generated("run", {}) == generated("trained", {}));
}

TEST_CASE("ema: without an average every command reports an error and writes nothing") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrainForAverage + sets({"training.steps=1"}));
  must(directory, exporting("run", "folder"));
  const std::vector<std::string> before = directory.listing();
  for (const std::string from : {"run", "folder"})
    for (const Arguments& command :
         {exporting(from, "out"), Arguments{"eval", "run.yaml", "--checkpoint", from}, Arguments{"generate", "--prompt", "a", "--checkpoint", from},
          Arguments{"generate", "--prompt", "a", "--tensor", "2", "--checkpoint", from}}) {
      const Outcome refused = run(directory, command + Arguments{"--weights", "ema"});
      check(refused, 65, " has no moving average of the weights; allowed a checkpoint of a run with training.ema.decay\n");
      CHECK(refused.out.empty());
      check(run(directory, command + Arguments{"--weights", "best"}), 64, "--weights");
    }
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("ema: a resumed run may switch it on and off, and reports the effect in one line") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto train = [&](int steps, const std::string& decay) {
    const Arguments until = {"--max-steps", std::to_string(steps)};
    return must(directory, kTrainForAverage + sets({"training.steps=8", "training.ema.decay=" + decay}) + until).err;
  };
  CHECK_THAT(train(2, "null"), !Contains("moving average"));
  CHECK_THAT(train(4, "0.9"),
             Contains("note: run/checkpoints/step-00000002 has no moving average of the weights; training.ema starts from its weights\n"));
  CHECK_THAT(train(6, "0.8"), !Contains("moving average"));
  must(directory, exporting("run", "average") + Arguments{"--weights", "ema"});
  CHECK_THAT(train(8, "null"), Contains("note: run/checkpoints/step-00000006 has a moving average of the weights, which is dropped"));
  check(run(directory, exporting("run", "out") + Arguments{"--weights", "ema"}), 65, "step-00000008 has no moving average");

  // The weights equal those of a run without an average.
  must(directory, kTrainForAverage + sets({"training.steps=8"}) + in("plain"));
  CHECK(weights_in(step_of(directory, "run", 8)) == weights_in(step_of(directory, "plain", 8)));
  CHECK(losses(directory / "run", 8) == losses(directory / "plain", 8));
}

}  // namespace trireme::test
