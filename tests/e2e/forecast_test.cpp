// Forecasts for this machine: `bench machine`, and the forecasts that `train` prints before and after training.
#include <algorithm>
#include <memory>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "trainer/machine/environment.h"

namespace trireme::test {
namespace {

using nlohmann::json;

TEST_CASE("bench machine: writes a cluster file that plan and train accept") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome measured = must(directory, {"bench", "machine", "--seconds", "0.001", "--allow-busy", "--output", "machine.yaml"});
  for (const char* sample : {"product 512 x 256 x 1376, fp32", "attention 4 x 256, 8 heads of 64, bf16", "gelu_backward, bf16", "adamw_step, fp32",
                             "all-reduce of 4096 bytes, 8 ranks"}) {
    INFO(measured.err);
    CHECK(measured.err.find(sample) != std::string::npos);
  }
  const std::string file = read_file(directory / "machine.yaml");
  for (const char* key : {"elementwise_bandwidth: ", "core_scaling: "}) {
    INFO(file);
    CHECK(file.find(key) != std::string::npos);
    CHECK(file.find(std::string(key) + "auto") == std::string::npos);
  }
  const Outcome planned = must(directory, {"plan", "run.yaml", "--cluster", "machine.yaml", "--json"});
  const json plan = json::parse(planned.out);
  CHECK(plan["step_seconds"].get<double>() > 0);
  CHECK(plan["fits"] == true);
  // Eight ranks share the cores that were measured.
  const Outcome shared = must(directory, Arguments{"plan", "run.yaml", "--cluster", "machine.yaml", "--json"} + layout(2, 2, 2, 0));
  CHECK(json::parse(shared.out)["memory_bytes"].size() == 2);

  must(directory, Arguments{"train", "run.yaml", "--max-steps", "3"} + sets({"plan.cluster=machine.yaml"}) + in("run"));
  const std::vector<json> lines = metrics(directory / "run");
  REQUIRE(lines.front()["event"] == "start");
  CHECK(lines.front()["forecast"]["figures"] == "the figures of machine.yaml");
  CHECK(lines.front()["forecast"]["step_seconds"] == plan["step_seconds"]);
  // MFU uses the measured peak.
  REQUIRE(lines[1].contains("loss"));
  const auto product = [](const json& of) { return of["mfu"].get<double>() * of["step_seconds"].get<double>(); };
  CHECK(product(lines[1]) == Approx(product(plan)).epsilon(1e-9));
}

TEST_CASE("bench machine: refuses to measure a machine that is busy") {
  TemporaryDirectory directory;
  std::vector<std::unique_ptr<Process>> others;
  for (int i = 0; i < usable_cores(); ++i)
    others.push_back(std::make_unique<Process>(Arguments{"sh", "-c", "while :; do :; done"}, directory.path()));
  check(run(directory, {"bench", "machine", "--seconds", "60", "--output", "machine.yaml"}), 70, " % of the cores, so the figures would not be");
  CHECK(directory.listing().empty());
}

TEST_CASE("bench: an unwritable file is reported before anything is measured") {
  TemporaryDirectory directory;
  const auto under = [&](const char* place) {
    return Process({"env", std::string("TMPDIR=") + place, kBinary, "bench", "machine", "--seconds", "60"}, directory.path()).wait();
  };
  check(run(directory, {"bench", "machine", "--seconds", "60", "--output", "nowhere/machine.yaml"}), 74, "nowhere");
  check(under("/nowhere"), 74, "/nowhere/trireme-bench-");
  check(run(directory, {"bench", "comm", "--json", "--output", "rows.json"}), 64, "--json excludes --output");
  CHECK(directory.listing().empty());
}

TEST_CASE("train: prints its forecast before the first step, and compares it with the measurement at the end") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments large = sets({"model.hidden_size=128", "model.ffn_size=512", "training.global_batch_size=32", "training.evaluate.every=10"});
  const Outcome outcome = must(directory, Arguments{"train", "run.yaml"} + large + sets({"training.steps=17", "checkpoint.every=0"}) + in("run"));
  const size_t before = outcome.err.find("forecast: "), after = outcome.err.find("forecast vs measured: ");
  INFO(outcome.err);
  REQUIRE(before != std::string::npos);
  REQUIRE(after != std::string::npos);
  CHECK(before < after);
  const std::vector<json> lines = metrics(directory / "run");
  const json forecast = lines.front()["forecast"];
  CHECK(forecast["step_low"].get<double>() < forecast["step_seconds"].get<double>());
  CHECK(forecast["step_seconds"].get<double>() < forecast["step_high"].get<double>());
  std::vector<double> seconds;
  json end, memory;
  for (const json& line : lines) {
    if (line.contains("step_seconds") && line.contains("loss")) seconds.push_back(line["step_seconds"].get<double>());
    if (line.value("event", "") == "forecast") end = line;
    if (line.value("event", "") == "memory") memory = line;
  }
  REQUIRE(seconds.size() == 17);
  std::vector<double> steady(seconds.begin() + 5, seconds.end());
  steady.erase(steady.begin() + 5);  // step 11 follows an evaluation
  std::sort(steady.begin(), steady.end());
  REQUIRE(end.is_object());
  CHECK(end["step"] == 17);
  CHECK(end["step_seconds"]["forecast"] == forecast["step_seconds"]);
  CHECK(end["step_seconds"]["measured"] == steady[5]);
  CHECK(end["memory_bytes"]["forecast"] == memory["forecast"][0]["peak"]);
  CHECK(end["memory_bytes"]["measured"] == memory["measured"][0]["peak"]);
}

TEST_CASE("train: a run of few or very short steps is not compared with its forecast") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Outcome outcome = must(directory, Arguments{"train", "run.yaml"} + in("run"));
  CHECK(outcome.err.find("forecast: ") != std::string::npos);
  CHECK(outcome.err.find("forecast vs measured") == std::string::npos);
  for (const json& line : metrics(directory / "run")) CHECK(line.value("event", "") != "forecast");
}

TEST_CASE("train: a run that does not fit on this machine is refused before anything is written") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  const Outcome outcome = run(directory, Arguments{"train", "run.yaml"} + sets({"model.hidden_size=262144", "model.ffn_size=1048576"}) + in("run"));
  check(outcome, 64, "the run does not fit: the 1 rank on ");
  CHECK(outcome.err.find("plan.must_fit false") != std::string::npos);
  CHECK(directory.changes_since(before) == "");
}

}  // namespace
}  // namespace trireme::test
