// Runs of several islands: what metrics.jsonl has of the islands that have no rank 0, and that no island waits for another within a round.
#include <atomic>
#include <chrono>
#include <fstream>
#include <limits>
#include <thread>

#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/disturbed_run.h"
#include "tests/support/run_files.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Two islands of two data ranks: ranks 0 and 1, and ranks 2 and 3.
Config two_islands(const fs::path& directory, int64_t round) {
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 1;
  Config config = parity_config(ParityModel::kLlama, layout, "fp32");
  config.run.directory = directory / "run";
  config.model.vocab_size = 256;
  write_tokens(directory / "tokens", 12 * 400 + 1);
  config.data.train = {directory / "tokens"};
  config.parallel.islands = 2;
  config.training.local.steps = round;
  config.training.steps = 12;
  config.checkpoint.every = 0;
  return config;
}

std::vector<json> events_of(const Config& config, const std::string& kind) {
  std::vector<json> events;
  std::ifstream stream(fs::path(config.run.directory) / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);)
    if (json event = json::parse(line); event.value("event", "") == kind) events.push_back(std::move(event));
  return events;
}

/// The squared norm of the gradient of the rank's island becomes NaN.
Fault rejection(int64_t step, int rank) {
  return {step,         rank, "step",
          "all_reduce", true, [](const Tensor& sums) { sums.data<double>()[kSquares] = std::numeric_limits<double>::quiet_NaN(); }};
}

}  // namespace

TEST_CASE("local updates: a step that the second island rejects is reported, and not counted as one of the first") {
  const TemporaryDirectory directory;
  Config config = two_islands(directory.path, 1);
  config.training.max_rejected_steps = 2;
  CHECK(run_disturbed(config, rejection(6, 3), {.max_steps = 6}).empty());
  const std::vector<json> rejected = events_of(config, "rejected_step");
  REQUIRE(rejected.size() == 1);
  CHECK((rejected[0]["step"] == 6 && rejected[0]["island"] == 1));
  const CheckpointDescription saved = CheckpointReader(fs::path(config.run.directory) / "checkpoints" / checkpoint_name(6)).description();
  CHECK(saved.island_steps == std::vector<int64_t>{6, 5});
  CHECK(saved.island_rejections == std::vector<int64_t>{0, 1});
  // Neither island has rejected two steps in a row.
  CHECK(run_disturbed(config, rejection(7, 0), {.max_steps = 8}).empty());
  REQUIRE(events_of(config, "rejected_step").size() == 2);
  CHECK(events_of(config, "rejected_step")[1]["island"] == 0);
  const CheckpointDescription resumed = CheckpointReader(fs::path(config.run.directory) / "checkpoints" / checkpoint_name(8)).description();
  CHECK(resumed.island_steps == std::vector<int64_t>{7, 7});  // each continues with its own number
  CHECK(run_disturbed(config, rejection(9, 2), {.max_steps = 9}).empty());
  CHECK(run_disturbed(config, rejection(10, 2)).find("2 steps in a row were rejected by island 1, the last of them step 10") != std::string::npos);
}

TEST_CASE("local updates: an anomalous step of the second island is reported with the ranks of the world") {
  const TemporaryDirectory directory;
  Config config = two_islands(directory.path, 3);
  config.observe.anomalies.window = 8;
  CHECK(run_disturbed(config, Fault{11, 3, "shard", "reduce_scatter", true, scaled(1e4)}).empty());
  std::vector<json> of_step;
  for (const json& event : events_of(config, "anomaly"))
    if (event["step"] == 11) of_step.push_back(event);
  REQUIRE(of_step.size() == 1);
  CHECK(of_step[0]["island"] == 1);
  CHECK(of_step[0]["action"] == "warn");
  CHECK(of_step[0]["measured"]["grad_norm"] > of_step[0]["limit"]["grad_norm"]);
  CHECK(of_step[0]["rank_grad_norm"].size() == 2);
}

TEST_CASE("local updates: within a round no island waits for another, traced or not") {
  for (const bool traced : {false, true}) {
    const TemporaryDirectory directory;
    const Config config = two_islands(directory.path, 3);
    std::atomic<int64_t> reached = 0;  // the step of the first island
    std::atomic<bool> waited_in_vain = false;
    RunOptions options{.max_steps = 3};
    if (traced) options.trace_steps = StepRange{1, 3};
    const std::string error = run_observed(config, options, [&](int rank, const Progress& progress) -> BufferObserver {
      return [&, rank](Context&, const ObservedBuffer& traffic) {
        if (traffic.group != "step") return;
        const int64_t step = progress.snapshot().step;
        if (rank == 0) reached = std::max<int64_t>(reached, step);
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (rank == 2 && step == 1 && reached < 3 && !waited_in_vain) {
          if (std::chrono::steady_clock::now() > limit) waited_in_vain = true;
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
      };
    });
    CHECK(error.empty());
    CHECK(!waited_in_vain);
    CHECK(events_of(config, "exposed").size() == (traced ? 3 : 0));
  }
}

}  // namespace trireme::test
