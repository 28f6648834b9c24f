// Runs with parameter servers: gradients that are not finite, what metrics.jsonl has of an update, and islands that do not wait for a slow one.
#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <numeric>
#include <thread>

#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/disturbed_run.h"
#include "tests/support/run_files.h"
#include "trainer/loop/learning_rate.h"

namespace trireme::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

/// Islands of one rank, in rounds of six steps.
Config served_run(const fs::path& directory, int islands, int apply_after) {
  Config config = parity_config(ParityModel::kLlama, {}, "fp32");
  config.run.directory = directory / "run";
  config.model.vocab_size = 256;
  write_tokens(directory / "tokens", 12 * 400 + 1);
  config.data.train = {directory / "tokens"};
  config.parallel.islands = islands;
  config.training.asynchronous.mode = AsynchronousMode::kParameterServer;
  config.training.asynchronous.steps = 6;
  config.training.asynchronous.apply_after = apply_after;
  config.training.asynchronous.staleness = 8;
  config.training.steps = 12;
  config.checkpoint.every = 6;
  return config;
}

std::vector<json> lines_of_run(const Config& config, const std::string& event) {
  std::vector<json> lines;
  std::ifstream stream(fs::path(config.run.directory) / "metrics.jsonl");
  for (std::string line; std::getline(stream, line);)
    if (json value = json::parse(line); value.value("event", "") == event && (!event.empty() || value.contains("loss")))
      lines.push_back(std::move(value));
  return lines;
}

/// The squared norm of a gradient of an island becomes NaN.
Fault infinite_gradient(int64_t step, int rank) {
  return {step,         rank, "step",
          "all_reduce", true, [](const Tensor& sums) { sums.data<double>()[kSquares] = std::numeric_limits<double>::quiet_NaN(); }};
}

}  // namespace

TEST_CASE("asynchronous: an update of a gradient that is not finite is rejected, and one that has another gradient leaves it out") {
  for (const int apply_after : {1, 2}) {
    const TemporaryDirectory directory;
    const Config config = served_run(directory.path, 2, apply_after);
    CHECK(run_disturbed(config, infinite_gradient(1, 1)).empty());
    const std::vector<json> rejected = lines_of_run(config, "rejected_step"), steps = lines_of_run(config, "");
    CHECK(steps.size() == 12);
    CHECK(rejected.size() == (apply_after == 1 ? 1 : 0));
    for (const json& event : rejected) CHECK(!event.contains("island"));  // all islands have the same updates
    const CheckpointDescription saved = CheckpointReader(fs::path(config.run.directory) / "checkpoints" / checkpoint_name(12)).description();
    CHECK(saved.optimizer_steps == (apply_after == 1 ? 11 : 12));
    for (const json& step : steps) {
      CHECK(step["workers"].size() == static_cast<size_t>(apply_after));
      // The gradient that is left out leaves the rate that of the schedule.
      CHECK(step["learning_rate"] ==
            learning_rate(config.training.schedule, config.training.optimizer, config.training.global_batch_size, step["step"], 12));
    }
  }
}

TEST_CASE("asynchronous: the gradient norm of an update is the mean of those that it accepts") {
  // With apply_after 2, and no gradient of the second island ever finite, the norm is that of one gradient.
  std::array<double, 2> means{};
  for (const bool broken : {false, true}) {
    const TemporaryDirectory directory;
    Config config = served_run(directory.path, 2, 2);
    config.training.asynchronous.staleness = 0;  // each update has one gradient of each island
    const auto observer = [&](int rank, const Progress&) -> BufferObserver {
      return [=](Context&, const ObservedBuffer& traffic) {
        if (broken && rank == 1 && traffic.outgoing && traffic.group == "step" && traffic.verb == std::string("all_reduce") &&
            traffic.buffer.numel() == kStepSums)
          traffic.buffer.data<double>()[kSquares] = std::numeric_limits<double>::quiet_NaN();
      };
    };
    CHECK(run_observed(config, {}, observer).empty());
    std::vector<double> norms;
    for (const json& step : lines_of_run(config, ""))
      if (step["grad_norm"].is_number()) norms.push_back(step["grad_norm"]);
    REQUIRE(norms.size() == 12);
    means[broken] = std::accumulate(norms.begin(), norms.end(), 0.0) / static_cast<double>(norms.size());
  }
  CAPTURE(means);
  CHECK(means[1] == Approx(means[0]).epsilon(0.25));
}

TEST_CASE("asynchronous: an island computes while another one is slow, up to the bound") {
  const TemporaryDirectory directory;
  Config config = served_run(directory.path, 2, 1);
  config.training.asynchronous.steps = config.training.steps.value();
  config.checkpoint.every = 0;
  for (const int64_t bound : {0, 3}) {
    config.training.asynchronous.staleness = bound;
    fs::remove_all(config.run.directory);
    const std::string error = run_observed(config, {}, [&](int rank, const Progress&) -> BufferObserver {
      return [rank](Context&, const ObservedBuffer& traffic) {
        if (rank == 1 && traffic.group == "step") std::this_thread::sleep_for(std::chrono::milliseconds(150));
      };
    });
    CHECK(error.empty());
    int64_t ahead = 0, most = 0;
    for (const json& step : lines_of_run(config, "")) {
      ahead += step["workers"][0] == 0 ? 1 : -1;
      most = std::max(most, ahead);
    }
    INFO("bound " << bound << ", ahead by " << most);
    CHECK(most <= bound + 1);
    CHECK(most >= std::min<int64_t>(bound, 2));
  }
}

TEST_CASE("asynchronous: with a backup replica a slow island costs nothing, and no token is lost") {
  const TemporaryDirectory directory;
  Config config = served_run(directory.path, 3, 2);
  config.training.asynchronous.steps = config.training.steps.value();
  config.training.asynchronous.staleness = 0;
  config.checkpoint.every = 0;
  static constexpr auto kPause = std::chrono::milliseconds(200);
  const auto run = [&] {
    fs::remove_all(config.run.directory);
    const std::string error = run_observed(config, {}, [&](int rank, const Progress&) -> BufferObserver {
      return [rank](Context&, const ObservedBuffer& traffic) {
        if (traffic.group == "step") std::this_thread::sleep_for(rank == 1 ? kPause : kPause / 10);
      };
    });
    CHECK(error.empty());
    std::vector<double> seconds;
    for (const json& step : lines_of_run(config, "")) {
      seconds.push_back(step["step_seconds"]);
      CHECK(step["tokens"] == 12 * 12 * step["step"].get<int64_t>());
    }
    std::ranges::sort(seconds);
    return seconds[seconds.size() / 2];
  };
  config.resilience.backup_replicas = 1;
  const double with_backup = run();
  int64_t of_slow = 0, late = 0;
  for (const json& step : lines_of_run(config, "")) {
    int64_t counted = 0;
    for (size_t i = 0; i < step["workers"].size(); ++i) {
      counted += step["staleness"][i] == 0;
      if (step["workers"][i] == 1) ++(step["staleness"][i] == 0 ? of_slow : late);
    }
    CHECK(counted == 2);
  }
  CHECK(of_slow <= 2);
  CHECK(late >= 1);
  config.resilience.backup_replicas = 0;
  config.parallel.islands = 2;  // the slow one and another
  const double without = run();
  INFO("median seconds of a step with a backup " << with_backup << ", without " << without);
  CHECK(without >= std::chrono::duration<double>(kPause).count());
  CHECK(with_backup < 0.5 * without);
}

}  // namespace trireme::test
