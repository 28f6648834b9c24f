// `train --trace-steps`: where the time of selected steps is spent, on every rank.
#include <algorithm>
#include <csignal>
#include <limits>

#include "kernels/core/check.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"
#include "tests/support/trace_file.h"

namespace trireme::test {
namespace {

constexpr const char* kCauses[] = {"compute",   "tensor", "pipeline_bubble", "pipeline_transfer", "zero_gather", "zero_reduce", "data_wait",
                                   "optimizer", "other"};

/// Steps with an "exposed" line, in order; the parts of each sum to the step.
std::vector<int> exposed_steps(const std::filesystem::path& run_directory) {
  std::vector<int> steps;
  for (const nlohmann::json& line : metrics(run_directory)) {
    if (line.value("event", "") != "exposed") continue;
    steps.push_back(line["step"]);
    double sum = 0;
    for (const char* cause : kCauses) {
      CHECK(line.at(cause) >= 0);
      sum += line.at(cause).get<double>();
    }
    CHECK(sum == Approx(line.at("step_seconds").get<double>()).epsilon(1e-9));
    CHECK(line.size() == std::size(kCauses) + 4);  // event, step, step_seconds and time
    CHECK(line.at("compute") > 0);
  }
  return steps;
}

}  // namespace

TEST_CASE("trace: selected steps of all ranks, bit-identical to an untraced run, with and without overlap") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments about = Arguments{"train", "run.yaml"} + layout(1, 2, 2, 3) + sets({"training.steps=4", "training.evaluate.every=0"});
  const Outcome traced = must(directory, about + in("traced") + Arguments{"--trace-steps", "2:3"});
  must(directory, about + in("alone"));
  must(directory, about + in("waiting") + sets({"parallel.overlap=false"}) + Arguments{"--trace-steps", "4"});

  CHECK(exposed_steps(directory / "traced") == std::vector<int>{2, 3});
  CHECK(exposed_steps(directory / "alone").empty());
  CHECK(exposed_steps(directory / "waiting") == std::vector<int>{4});
  CHECK(traced.err.find("seconds per traced step by cause (steps traced: 2, last: 3): mean and maximum over 4 ranks") != std::string::npos);
  for (const char* cause : kCauses) CHECK(traced.err.find(std::string("\n  ") + cause) != std::string::npos);
  CHECK(losses(directory / "traced", 4) == losses(directory / "alone", 4));
  CHECK(losses(directory / "waiting", 4) == losses(directory / "alone", 4));
  CHECK(!std::filesystem::exists(directory / "alone/trace.json"));

  const TraceFile file = read_trace(read_file(directory / "traced/trace.json"));
  CHECK(file.problem == "");
  REQUIRE(file.processes.size() == 4);
  CHECK(file.processes.at(3) == "rank 3: pipeline 1, replicate 0, shard 1, tensor 0");
  for (int rank = 0; rank < 4; ++rank)
    for (const char* row : {"compute", "operations", "pipeline", "ZeRO", "waiting"}) {
      INFO("rank " << rank << ", " << row);
      CHECK(file.events.count({rank, row}) == 1);
    }
  // The operations of the first traced step, inside the compute events.
  const std::string text = read_file(directory / "traced/trace.json");
  for (const char* name : {"qkv linear_forward", "qkv linear_backward_weight", "attention_forward", "attention_backward", "down linear_forward"}) {
    INFO(name);
    const size_t at = text.find(concat("{\"name\":\"", name, "\",\"cat\":\"operations\""));
    REQUIRE(at != text.npos);
    CHECK(text.find("\"step 2\"", at) < text.find('\n', at));
  }
  for (int rank = 0; rank < 4; ++rank) {
    CHECK(file.busy.at({rank, "operations"}) > 0);
    CHECK(file.busy.at({rank, "operations"}) < file.busy.at({rank, "compute"}));
  }
  double second_ends = 0, third_begins = std::numeric_limits<double>::infinity();  // of rank 0: the steps follow each other
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const nlohmann::json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["pid"] != 0) continue;
    const double begin = event["ts"];
    if (event["args"]["step"] == "step 2") second_ends = std::max(second_ends, begin + event["dur"].get<double>());
    if (event["args"]["step"] == "step 3") third_begins = std::min(third_begins, begin);
  }
  CHECK(second_ends > 0);
  CHECK(second_ends <= third_begins);
  // Two steps, two pipelines; the micro-batches are the configuration's 8 sequences over 2 data ranks and the micro-batch size.
  const TraceFile waiting = read_trace(read_file(directory / "waiting/trace.json"));
  CHECK(waiting.problem == "");
  CHECK(file.arrows > 0);
  CHECK(file.arrows == 2 * waiting.arrows);
}

TEST_CASE("trace: a resumed run has each traced step once") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments about = Arguments{"train", "run.yaml"} + in("run") + sets({"training.steps=6", "checkpoint.every=2", "training.evaluate.every=0"});
  must(directory, about + Arguments{"--max-steps", "4", "--trace-steps", "1:4"});
  CHECK(exposed_steps(directory / "run") == std::vector<int>{1, 2, 3, 4});
  must(directory, about + Arguments{"--resume", "run/checkpoints/step-00000002", "--trace-steps", "4:5"});
  CHECK(exposed_steps(directory / "run") == std::vector<int>{1, 2, 4, 5});
  CHECK(read_trace(read_file(directory / "run/trace.json")).problem == "");
  const std::string trace = read_file(directory / "run/trace.json");
  const Outcome behind = must(directory, about + Arguments{"--resume", "run/checkpoints/step-00000004", "--trace-steps", "2:4"});
  CHECK(behind.err.find("--trace-steps=2:4: nothing to trace, 4 steps are already done\n") != std::string::npos);
  CHECK(read_file(directory / "run/trace.json") == trace);

  // Two of three steps are left to trace, and their means are shown.
  const Outcome rest = must(directory, about + Arguments{"--resume", "run/checkpoints/step-00000004", "--trace-steps", "4:6"});
  double seconds = 0;
  for (const nlohmann::json& line : metrics(directory / "run"))
    if (line.contains("event") && line["event"] == "exposed" && line["step"] > 4) seconds += line["step_seconds"].get<double>() / 2;
  const std::string row = "\n  step ";
  REQUIRE(rest.err.find(row) != std::string::npos);
  CHECK(std::stod(rest.err.substr(rest.err.find(row) + row.size())) == Approx(seconds).margin(6e-5));
}

TEST_CASE("trace: a stopped run writes the steps traced so far") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments about = Arguments{kBinary, "train", "run.yaml"} + layout(1, 2, 1, 0) + in("run") +
                          sets({"training.steps=400", "training.evaluate.every=0", "training.sequence_length=128", "training.global_batch_size=64"});
  Process process(about + Arguments{"--trace-steps", "2:101"}, directory.path());
  REQUIRE(process.wait_for("step 3/"));
  process.signal(SIGTERM);
  const Outcome stopped = process.wait();
  INFO(stopped.err);
  REQUIRE(stopped.code == 75);
  const std::vector<int> steps = exposed_steps(directory / "run");
  REQUIRE(steps.size() >= 2);
  REQUIRE(steps.size() < 100);
  CHECK(stopped.err.find(concat("by cause (steps traced: ", steps.size(), ", last: ", steps.back(), "): mean and maximum over 2 ranks")) !=
        std::string::npos);
  const std::string trace = read_file(directory / "run/trace.json");
  CHECK(read_trace(trace).problem == "");
  for (const int step : {2, steps.back()}) CHECK(trace.find(concat("\"step ", step, "\"")) != std::string::npos);
}

TEST_CASE("trace: ranks with different --trace-steps do not start") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments about = Arguments{kBinary, "train", "run.yaml"} + layout(1, 1, 2, 0) + in("run") + sets({"training.steps=4"});
  const Arguments one{"-n", "1"};
  const Arguments command = mpirun_command() + one + about + Arguments{"--trace-steps", "2:3", ":"} + one + about;
  const Outcome outcome = Process(command, directory.path()).wait();
  INFO(outcome.err);
  CHECK(outcome.code == 64);
  CHECK(outcome.err.find("--trace-steps differs between rank 0 and rank 1") != std::string::npos);
}

TEST_CASE("trace: an empty or too long range is refused before anything is written") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const auto before = directory.listing();
  const Arguments about = Arguments{"train", "run.yaml"} + in("run") + sets({"training.steps=4"});
  check(run(directory, about + Arguments{"--trace-steps", "3:2"}), 64, "--trace-steps=3:2: invalid range of steps");
  check(run(directory, about + Arguments{"--trace-steps", "0:2"}), 64, "--trace-steps=0:2");
  check(run(directory, about + Arguments{"--trace-steps", "1:101"}), 64, "--trace-steps=1:101: 101 steps; allowed at most 100");
  check(run(directory, about + Arguments{"--trace-steps", "3:5"}), 64, "the run ends after step 4");
  check(run(directory, about + Arguments{"--trace-steps", "3:4", "--max-steps", "3"}), 64, "the run ends after step 3");
  check(run(directory, about + layout(1, 1, 2, 0) + Arguments{"--trace-steps", "3:5"}), 64, "the run ends after step 4");
  CHECK(directory.changes_since(before) == "");
}

}  // namespace trireme::test
