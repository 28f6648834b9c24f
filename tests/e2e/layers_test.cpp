// observe.activations and observe.histograms: figures of layers, in runs of several layouts.
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

using nlohmann::json;

namespace trireme::test {
namespace {

/// activation_max of each step that has it.
std::map<int64_t, json> activations_of(const std::filesystem::path& run) {
  std::map<int64_t, json> found;
  for (const json& line : metrics(run))
    if (line.contains("activation_max")) found[line.at("step")] = line.at("activation_max");
  return found;
}

}  // namespace

TEST_CASE("layers: the largest activations of recorded steps in metrics.jsonl, event files and for Prometheus, in every layout alike") {
  TemporaryDirectory directory;
  prepare_run(directory);
  must(directory, kTrain + in("plain"));
  const Arguments recorded = kTrain + sets({"observe.activations.every=2", "observe.tensorboard=true", "observe.histograms.every=3"});
  must(directory, recorded + in("one") + sets({"observe.prometheus.textfile=one.prom"}));
  CHECK(losses(directory / "one", 6) == losses(directory / "plain", 6));
  const std::map<int64_t, json> expected = activations_of(directory / "one");
  REQUIRE(expected.size() == 3);
  for (const int64_t step : {2, 4, 6}) {
    std::string names;
    for (const auto& [layer, largest] : expected.at(step).items()) names += layer + " ";
    CHECK(names == "blocks.0 blocks.1 blocks.2 blocks.3 embedding ");
  }
  const std::string figures = read_file(directory / "one.prom");
  CHECK(count(figures, "\ntrireme_activation_max{run=\"run\",part=\"blocks.3\"} ") == 1);
  std::string events;
  for (const std::string& name : names_in(directory / "one/tensorboard")) events += read_file(directory / "one/tensorboard" / name);
  CHECK(count(events, "activation_max/blocks.3") == 3);
  CHECK(count(events, "gradients/blocks.3") == 2);
  CHECK(count(events, "weights/embedding") == 2);
  for (const auto& [name, degrees] : {std::pair("tp2", layout(2, 1, 1, 0)), {"pp2-dp2", layout(1, 2, 2, 3)}}) {
    CAPTURE(name);
    must(directory, recorded + degrees + in(name));
    const std::map<int64_t, json> split = activations_of(directory / name);
    REQUIRE(split.size() == 3);
    for (const auto& [step, layers] : expected)
      for (const auto& [layer, largest] : layers.items())
        CHECK(split.at(step).at(layer).get<double>() == Approx(largest.get<double>()).epsilon(1e-4));
  }
}

TEST_CASE("layers: histograms without event files are refused") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  check_error(run(directory, kTrain + sets({"observe.histograms.every=5"})), 64,
              "observe.histograms.every=5: histograms are written to the event files of observe.tensorboard only, which is false; allowed 0, or "
              "observe.tensorboard true | path; nearest valid 0");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
