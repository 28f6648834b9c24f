// What security.privacy does not go with: each is refused by its own key, with the reason.
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/catch.h"
#include "trainer/config/check.h"
#include "trainer/config/report.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

Config private_config() {
  Config c;
  c.model.layers = 2;
  c.model.vocab_size = 256;
  c.model.heads = 4;
  c.model.kv_heads = 2;
  c.training.steps = 10;
  c.training.global_batch_size = 8;
  c.data.train = {"data"};
  c.security.privacy = {1.0, 1.1, std::nullopt, 1e-5, "key"};
  return c;
}

/// The lines of the violations that security.privacy causes: "key=value: rule; allowed ...".
std::vector<std::string> refusals(const Config& config) {
  Violations violations;
  check(config, Sources{}, violations);
  std::istringstream lines(violations.text(Sources{}));
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);)
    if (line.find("or security.privacy.clip null") != std::string::npos) found.push_back(line);
  return found;
}

}  // namespace

TEST_CASE("privacy: every feature whose effect the accountant does not cover is refused by name") {
  CHECK(refusals(private_config()).empty());
  const auto check_refused = [](const std::string& key, const std::string& reason, const auto& edit) {
    CAPTURE(key);
    Config config = private_config();
    edit(config);
    const std::vector<std::string> found = refusals(config);
    REQUIRE(found.size() == 1);
    CHECK(found[0].starts_with(key + "="));
    CHECK(found[0].find(reason) != std::string::npos);
    config.security.privacy = {};
    CHECK(refusals(config).empty());
  };
  check_refused("run.device", "no CUDA kernels", [](Config& c) { c.run.device = DeviceType::kCuda; });
  check_refused("training.precision", "loss scale", [](Config& c) { c.training.precision = Arithmetic::kFp16; });
  check_refused("training.reduce_dtype", "loses to rounding", [](Config& c) {
    c.training.precision = Arithmetic::kBf16;
    c.training.reduce_dtype = ReduceDtype::kBf16;
  });
  check_refused("model.dropout", "what the others contribute", [](Config& c) { c.model.dropout = 0.1; });
  check_refused("parallel.gradient_accumulation", "adds its noise once a step", [](Config& c) {
    c.parallel.zero_stage = 2;
    c.parallel.data = 4;
    c.parallel.gradient_accumulation = GradientAccumulation::kSharded;
    c.security.aggregation.rule = AggregationRule::kMedian;
    c.security.aggregation.byzantine = 1;
  });
  check_refused("model.tied_embeddings", "only the sum of both is clipped", [](Config& c) {
    c.parallel.pipeline = 2;
    c.model.tied_embeddings = true;
    c.training.compression.method = CompressionMethod::kTopK;
  });
  check_refused("training.local.steps", "noise of its own", [](Config& c) { c.training.local.steps = 2; });
  check_refused("training.asynchronous.mode", "which asynchronous updates lack",
                [](Config& c) { c.training.asynchronous.mode = AsynchronousMode::kParameterServer; });
  check_refused("parallel.islands", "drawn for all ranks together", [](Config& c) { c.parallel.islands = 2; });
  check_refused("resilience.rebalance", "no split to keep", [](Config& c) { c.resilience.rebalance = Rebalance::kMicroBatches; });
  check_refused("resilience.backup_replicas", "would not be random", [](Config& c) { c.resilience.backup_replicas = 1; });
  check_refused("parallel.schedule", "actions of one number", [](Config& c) { c.parallel.schedule = "file"; });
  check_refused("data.packing", "part of one sequence alone", [](Config& c) { c.data.packing = Packing::kBestFit; });
  check_refused("data.balance", "not assigned by their cost", [](Config& c) { c.data.balance = Balance::kCost; });
  check_refused("data.weights", "same probability", [](Config& c) { c.data.weights = std::vector<double>{1}; });
  check_refused("observe.anomalies.policy", "would depend on its data", [](Config& c) { c.observe.anomalies.policy = AnomalyPolicy::kSkip; });
  check_refused("parallel.tensor", "share key and value heads, of which there are 2", [](Config& c) { c.parallel.tensor = 4; });
}

TEST_CASE("privacy: compression and robust rules are allowed, and gradients are then whole") {
  Config config = private_config();
  config.parallel.data = 4;
  config.parallel.zero_stage = 2;
  config.parallel.pipeline = 2;
  config.model.tied_embeddings = true;
  CHECK_FALSE(adds_noise_on_each_rank(config));
  CHECK(resolve(config).parallel.gradient_accumulation == GradientAccumulation::kSharded);
  config.security.aggregation.rule = AggregationRule::kMedian;
  config.security.aggregation.byzantine = 1;
  CHECK(refusals(config).empty());
  CHECK(adds_noise_on_each_rank(config));
  CHECK(resolve(config).parallel.gradient_accumulation == GradientAccumulation::kFull);
  config.model.tied_embeddings = false;
  config.training.compression.method = CompressionMethod::kTopK;
  CHECK(refusals(config).empty());
}

TEST_CASE("privacy: tensor ranks with key and value heads of their own are allowed") {
  Config config = private_config();
  config.parallel.tensor = 2;
  CHECK(refusals(config).empty());
}

}  // namespace trireme
