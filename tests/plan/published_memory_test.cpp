// Compares the published memory of other systems with their stack's formulas.
#include <algorithm>
#include <cmath>
#include <map>

#include "tests/plan/published_rows.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/memory/stack_memory.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

std::string rows_file() { return test::in_checkout("tests/plan/published.yaml"); }

double most(const std::vector<RankBytes>& ranks) { return std::ranges::max(ranks, {}, &RankBytes::peak).peak; }

/// The sorted value nearest to the share of the way from the first to the last. published::quantile would be the last one of the stacks with few rows.
double nearest_quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

TEST_CASE("every stack has memory figures") {
  for (const Stack& stack : stacks()) {
    const bool own = std::string(stack.name) == "trireme";
    CHECK(std::ranges::count(stack_memories(), std::string(stack.name), [](const StackMemory& one) { return std::string(one.stack); }) ==
          (own ? 0 : 1));
  }
}

/// A model on the stack `name`, of which a test changes what it needs.
struct StackRun {
  explicit StackRun(const char* name) {
    config.data.train = {"none"};
    config.run.device = DeviceType::kCpu;
    config.model.layers = 8;
    config.model.hidden_size = 1024;
    config.model.heads = 16;
    config.model.vocab_size = 128000;
    config.model.tied_embeddings = false;
    config.training.steps = 1;
    config.training.sequence_length = 1024;
    config.training.global_batch_size = 16;
    config.training.precision = Arithmetic::kBf16;
    cluster.device.type = "H100";
    cluster.devices_per_node = 4;
    cluster.software.stack = name;
  }
  std::vector<RankBytes> memory() const { return formula_memory(resolve(config), resolve_cluster(cluster)); }
  Config config;
  ClusterConfig cluster;
};

TEST_CASE("memory of other systems' stacks: only a reduction to shards has their bytes") {
  StackRun run("nanotron");
  run.config.parallel.data = 4;
  const auto bytes_per_parameter = [&](int64_t zero) {
    run.config.parallel.zero_stage = zero;
    const RankBytes rank = run.memory().front();
    return (rank.gradients + rank.optimizer) / (rank.parameters / 2);
  };
  CHECK(bytes_per_parameter(0) == Approx(4 + 12));
  CHECK(bytes_per_parameter(1) == Approx(4 + (12 + 4) / 4.0));
  run.config.parallel.gradient_accumulation = GradientAccumulation::kSharded;
  run.config.parallel.zero_stage = 2;
  CHECK(bytes_per_parameter(2) == Approx((4 + 12) / 4.0));  // the accumulator is sharded itself
}

TEST_CASE("memory of other systems' stacks: gathered inputs that autograd saves") {
  const auto activations = [](const char* name, RecomputeMode recompute, bool sequence_parallel) {
    StackRun run(name);
    run.config.parallel.tensor = 4;
    run.config.parallel.sequence_parallel = sequence_parallel;
    run.config.training.recompute = recompute;
    run.config.training.micro_batch_size = 16;
    return run.memory().front().activations;
  };
  // The three quarters of a tensor of 16 x 1024 tokens that belong to other ranks.
  constexpr double kGathered = 16 * 1024 * 1024 * 2 * 0.75, kLayers = 8;
  constexpr double kRow = 16 * 1024 * 1024 * 0.75;  // the same in bytes of one byte per element: saved in parts with sequence parallelism
  // Without sequence parallelism a layer saves 8 rows of one byte in whole. With it, two gathered inputs of each layer and two gradients of one.
  const double whole = activations("torchtitan", RecomputeMode::kNone, false), split = activations("torchtitan", RecomputeMode::kNone, true);
  CHECK(whole - split == Approx(kLayers * (8 * kRow - 2 * kGathered) - 2 * kGathered).epsilon(1e-6));
  CHECK(activations("megatron-2024", RecomputeMode::kNone, false) - activations("megatron-2024", RecomputeMode::kNone, true) ==
        Approx(kLayers * 8 * kRow).epsilon(1e-6));
  // With full recomputation layers save their inputs of 2 bytes, and one layer is in its backward.
  const double full_whole = activations("torchtitan", RecomputeMode::kFull, false),
               full_split = activations("torchtitan", RecomputeMode::kFull, true);
  CHECK(full_whole - full_split == Approx(kLayers * 2 * kRow + 8 * kRow - 4 * kGathered).epsilon(1e-6));
}

TEST_CASE("memory of other systems' stacks: PyTorch's shards, sums of gradients and kept logits") {
  StackRun run("torchtitan");
  run.config.parallel.data = 4;
  run.config.parallel.zero_stage = 3;
  const RankBytes shard = run.memory().front();
  CHECK(shard.parameters == 0);
  CHECK(shard.optimizer == Approx(3 * shard.gradients));  // 12 and 4 bytes of a quarter of the parameters
  run.config.parallel.data = 2;
  run.config.parallel.pipeline = 2;
  run.config.parallel.zero_stage = 1;
  const auto last = [&](int64_t batch) {
    run.config.training.global_batch_size = batch;
    return run.memory().back();
  };
  const RankBytes few = last(16), many = last(32);
  CHECK(few.gradients == Approx(2 * few.parameters));
  constexpr double kLogits = 1024.0 * 128000, kMore = 8;  // of a micro-batch, and micro-batches
  CHECK(many.activations - few.activations == Approx(6 * kLogits * kMore));
  const RankBytes one = last(2);
  CHECK(few.activations - one.activations == Approx(6 * kLogits * 7));  // of the other seven micro-batches
}

TEST_CASE("memory of other systems' stacks: a last stage without layers has its logits") {
  StackRun run("megatron-2024");
  run.config.parallel.pipeline = 4;
  run.config.parallel.layers_per_stage = {0, 4, 4, 0};
  const std::vector<RankBytes> ranks = run.memory();
  constexpr double kTable = 128000.0 * 1024, kBytes = 18;  // weight, gradient, fp32 weight and two moments
  const auto states = [&](size_t rank) { return ranks[rank].parameters + ranks[rank].gradients + ranks[rank].optimizer; };
  CHECK(states(0) == Approx(kBytes * kTable).epsilon(1e-3));
  CHECK(states(3) == Approx(kBytes * kTable).epsilon(1e-3));
  CHECK(ranks[0].activations == 0);
  CHECK(ranks[3].activations == Approx(8.0 * 1024 * 128000));  // 8 bytes a logit
}

TEST_CASE("published memory by source, and runs out of memory") {
  const std::map<std::string, std::pair<double, double>> bounds = {
      // median, 90th percentile
      {"megatron-deepspeed", {0.03, 0.08}}, {"zero-bubble", {0.03, 0.06}},
      {"torchtitan", {0.03, 0.03}},         {"torchtitan, several ranks of a model", {0.08, 0.085}},
      {"nanotron", {0.04, 0.125}},          {"all", {0.025, 0.075}}};
  std::map<std::string, std::vector<double>> errors;
  for (const published::Run& run : published::read_rows(rows_file()).runs) {
    const double bytes = most(formula_memory(run.config, run.cluster));
    CAPTURE(run.id, bytes, *run.cluster.device.memory);
    const bool parts = run.cluster.software.stack == "torchtitan" && run.config.parallel.tensor > 1;
    if (run.memory_bytes) errors["all"].push_back(std::abs(bytes / *run.memory_bytes - 1));
    if (run.memory_bytes)
      errors[concat(run.cluster.software.stack, parts ? ", several ranks of a model" : "")].push_back(std::abs(bytes / *run.memory_bytes - 1));
    if (!run.out_of_memory) CHECK(bytes <= *run.cluster.device.memory);
    // One run of the chronicles ran out of memory although similar runs with as many parameters per GPU needed 67 GB. No steady-state formula
    // distinguishes them.
    if (run.out_of_memory && !run.id.ends_with("L957")) CHECK(bytes > *run.cluster.device.memory);
  }
  for (const auto& [stack, list] : errors) {
    const double median = nearest_quantile(list, 0.5), ninth = nearest_quantile(list, 0.9);
    UNSCOPED_INFO(stack << ": " << list.size() << " rows, median " << median << ", p90 " << ninth << ", worst " << nearest_quantile(list, 1));
    REQUIRE(bounds.contains(stack));
    CHECK(median <= bounds.at(stack).first);
    CHECK(ninth <= bounds.at(stack).second);
  }
  CHECK(errors.size() == bounds.size());
}

}  // namespace
}  // namespace trireme
