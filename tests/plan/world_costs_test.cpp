// Compares simulations of all ranks with the forecast and with hand calculations.
#include "trainer/plan/world_costs.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/scratch.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/model/flops.h"
#include "trainer/plan/collective.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/layouts.h"

namespace trireme {
namespace {

ClusterConfig machines(const std::string& type, int64_t devices, double cores = 0) {
  ClusterConfig cluster;
  cluster.device.type = type;
  if (cores > 0) cluster.device.cores = cores;
  cluster.devices_per_node = std::min<int64_t>(devices, 8);
  cluster.nodes = devices / cluster.devices_per_node;
  return resolve_cluster(cluster);
}

Config model(const std::string& parallel, bool tied = false, const std::string& precision = "bf16", const std::vector<std::string>& sets = {}) {
  const std::string text = concat("model: {layers: 16, hidden_size: 2048, heads: 16, vocab_size: 32000, tied_embeddings: ", tied ? "true" : "false",
                                  "}\nparallel: {", parallel, "}\ntraining: {steps: 1, sequence_length: 2048, micro_batch_size: 1, ",
                                  "global_batch_size: 32, precision: ", precision, "}\ndata: {train: [none]}\n");
  const LoadedConfig loaded = parse_config(text, "a test", sets);
  return resolve(loaded);
}

struct Case {
  const char* what;
  std::string parallel;
  double below, above;  ///< relative tolerances: how much shorter or longer than the forecast the simulated step may be
  bool tied = false;
  const char* type = "H100";
  double cores = 0;
  double slower_links = 1, straggler = 1;
  std::vector<std::string> sets = {};
};

}  // namespace

TEST_CASE("the simulated world takes as long as the forecast without the update") {
  constexpr double kSame = 1e-9;       // no collective overlaps compute
  constexpr double kTransfer = 2e-3;   // a lowered transfer waits for both of its ends
  constexpr double kTransfers = 3e-3;  // a V has two stages on a rank, and so twice as many
  constexpr double kReduced = 0.02;    // reductions once per step overlap the actual compute; in the forecast, a share of it
  constexpr double kEachUse = 5e-3;    // no compute before the first gather and after the last reduction
  constexpr double kAlone = 0.03;      // a head alone on its rank is gathered once a step; in the forecast, for each backward
  const std::vector<std::string> frozen{"model.frozen=[embedding.weight, 'blocks.?.*']"};
  const std::vector<std::string> adapters{"adapter.rank=64"};
  const Case cases[] = {
      {"one rank", "tensor: 1", kSame, kSame},
      {"tensor ranks", "tensor: 4", kSame, kSame},
      {"tensor ranks, sequence split", "tensor: 4, sequence_parallel: true", kSame, kSame},
      {"tied, one stage", "tensor: 2", kSame, kSame, true},
      {"pipeline", "pipeline: 4", kTransfer, kTransfer},
      {"gpipe", "pipeline: 4, schedule: gpipe", kTransfer, kTransfer},
      {"interleaved", "pipeline: 4, schedule: interleaved_1f1b, virtual_stages: 2", kTransfer, kTransfer},
      {"zb_h1", "pipeline: 4, schedule: zb_h1", kTransfer, kTransfer},
      {"a V", "pipeline: 4, schedule: zb_v", kTransfer, kTransfers},
      {"ends without layers", "pipeline: 4, layers_per_stage: [0, 8, 8, 0]", kTransfer, kTransfer},
      {"ends without layers, tied", "pipeline: 4, layers_per_stage: [0, 8, 8, 0], schedule: zb_h1", kTransfer, kTransfer, true},
      {"a V without layers on a rank", "pipeline: 4, schedule: zb_v, layers_per_stage: [0, 2, 3, 3, 3, 3, 2, 0]", kTransfer, kTransfers, true},
      {"ends without layers, data", "pipeline: 4, data: 2, zero_stage: 1, layers_per_stage: [0, 8, 8, 0]", kReduced, kReduced},
      {"ends without layers, ZeRO-3", "pipeline: 4, data: 2, zero_stage: 3, layers_per_stage: [0, 8, 8, 0]", kAlone, kReduced},
      {"a V, tied", "pipeline: 4, schedule: zb_v", kTransfer, kTransfers, true},
      {"tied, ends apart", "pipeline: 2", kTransfer, kTransfer, true},
      {"tied, ends apart, data", "pipeline: 2, data: 2", kReduced, kReduced, true},
      {"data", "data: 8", kReduced, kReduced},
      {"data, two nodes", "data: 16", 0.05, kReduced},  // the forecast exposes a tenth of the reduction, the simulation none
      {"data and tensor", "data: 4, tensor: 2", kReduced, kReduced},
      {"ZeRO-1", "data: 8, zero_stage: 1", kReduced, kReduced},
      {"all of them", "data: 2, tensor: 2, pipeline: 2, zero_stage: 1", kReduced, kReduced},
      {"ZeRO-2", "data: 8, zero_stage: 2", kEachUse, kEachUse},
      {"ZeRO-3", "data: 8, zero_stage: 3", kEachUse, kEachUse},
      {"ZeRO-3, tied", "data: 8, zero_stage: 3", kEachUse, kEachUse, true},
      {"ZeRO-3, nothing overlaps", "data: 8, zero_stage: 3, overlap: false", kEachUse, kEachUse},
      {"ZeRO-3 of replicas", "data: 16, zero_stage: 3, replicate: 2", kReduced, kReduced},
      {"ZeRO-3, pipeline", "data: 4, pipeline: 2, zero_stage: 3", kReduced, kReduced},
      {"ZeRO-3, gpipe", "data: 4, pipeline: 2, zero_stage: 3, schedule: gpipe", kReduced, kReduced},
      {"ZeRO-2, slow links", "data: 8, zero_stage: 2", kEachUse, kEachUse, false, "H100", 0, 20},
      {"ZeRO-3, slow links", "data: 8, zero_stage: 3", kEachUse, kEachUse, false, "H100", 0, 20},
      {"CPU, a core each", "data: 2, pipeline: 2", kTransfer, kTransfer, false, "cpu", 4},
      {"CPU, two cores each", "data: 2, tensor: 2", kTransfer, kTransfer, false, "cpu", 8},
      {"CPU, ZeRO-3", "data: 4, zero_stage: 3", kEachUse, kEachUse, false, "cpu", 4},
      {"a straggler", "pipeline: 4", kTransfer, kTransfer, false, "H100", 0, 1, 1.5},
      {"a straggler of tensor ranks", "tensor: 4, pipeline: 2", kTransfer, kTransfer, false, "H100", 0, 1, 1.5},
      {"frozen, ZeRO-1", "data: 8, zero_stage: 1", kReduced, kReduced, false, "H100", 0, 20, 1, frozen},
      {"frozen, ZeRO-2", "data: 8, zero_stage: 2", kEachUse, kEachUse, false, "H100", 0, 20, 1, frozen},
      {"frozen, ZeRO-3", "data: 8, zero_stage: 3", kEachUse, kEachUse, false, "H100", 0, 20, 1, frozen},
      {"adapters, data", "data: 8", kReduced, kReduced, false, "H100", 0, 20, 1, adapters},
      {"adapters, ZeRO-1", "data: 8, zero_stage: 1", kReduced, kReduced, false, "H100", 0, 20, 1, adapters},
      {"adapters, ZeRO-3", "data: 8, zero_stage: 3", kEachUse, kEachUse, false, "H100", 0, 20, 1, adapters},
      {"adapters, ZeRO-3, pipeline", "data: 4, pipeline: 2, zero_stage: 3", kReduced, kReduced, false, "H100", 0, 1, 1, adapters},
      {"a straggler of replicas", "data: 4, pipeline: 2, zero_stage: 1", kReduced, kReduced, false, "H100", 0, 1, 1.5},
  };
  for (const Case& one : cases) {
    const Config config = model(one.parallel, one.tied, std::string(one.type) == "cpu" ? "fp32" : "bf16", one.sets);
    const MeshShape mesh = mesh_shape(config.parallel);
    ClusterConfig cluster = machines(one.type, mesh.world(), one.cores);
    *cluster.node_link.bandwidth /= one.slower_links;
    cluster.software.straggler = one.straggler;
    const Forecast forecast = forecast_time(config, cluster);
    const double expected = forecast.step_seconds - forecast.parts.optimizer - forecast.parts.host;
    const SimulatedWorld world = simulate_step(config, cluster, lowered_schedule(config));
    CAPTURE(one.what, expected, world.step.step_seconds, world.step.step_seconds / expected - 1);
    CHECK(world.ranks == mesh.world());
    CHECK(world.step.step_seconds >= (1 - one.below) * expected);
    CHECK(world.step.step_seconds <= (1 + one.above) * expected);
  }
}

TEST_CASE("a straggler costs what remains after its micro-batches have moved") {
  const auto seconds = [](const std::string& rebalance, double straggler, const std::string& zero = "", double left = 7 / 6.0) {
    const std::string text = concat(
        "model: {layers: 4, hidden_size: 512, heads: 8, vocab_size: 32000}\nparallel: {data: 4", zero, "}\ntraining: {steps: 1, ",
        "sequence_length: 1024, micro_batch_size: 1, global_batch_size: 24}\ndata: {train: [none]}\n", "resilience: {rebalance: ", rebalance, "}\n");
    ClusterConfig cluster = machines("cpu", 1);
    cluster.software.straggler = straggler;
    const Config config = resolve(parse_config(text, "a test"));
    CHECK(straggler_factor(config, cluster) == Approx(rebalance == "none" ? straggler : straggler == 1 ? 1 : left));
    const Forecast forecast = forecast_time(config, cluster);
    return forecast.step_seconds - forecast.parts.optimizer - forecast.parts.host;
  };
  CHECK(seconds("micro_batches", 1) == seconds("none", 1));
  CHECK(seconds("none", 2) > 1.8 * seconds("none", 1));
  CHECK(seconds("micro_batches", 2) == Approx(7 / 6.0 * seconds("none", 1)).epsilon(0.02));
  // Data ranks that meet in every micro-batch: 3 with the slow rank and 4 without it.
  for (const char* const each : {", zero_stage: 2", ", zero_stage: 3", ", zero_stage: 3, gradient_accumulation: full"})
    CHECK(seconds("micro_batches", 2, each, 10 / 6.0) / seconds("none", 2, each) == Approx(10 / 12.0).epsilon(0.02));
  const std::string once = ", zero_stage: 3, gradient_accumulation: full, reshard: after_step";
  CHECK(seconds("micro_batches", 2, once) / seconds("none", 2, once) == Approx(7 / 12.0).epsilon(0.02));
}

TEST_CASE("layers with a window take less time individually, in the forecast and in the simulated world") {
  const auto with = [&](const std::string& window, const std::string& parallel) {
    const std::string text = concat("model: {layers: 4, hidden_size: 2048, heads: 16, vocab_size: 32000", window, "}\nparallel: {", parallel,
                                    "}\ntraining: {steps: 1, sequence_length: 16384, micro_batch_size: 1, global_batch_size: 8, precision: bf16}\n",
                                    "data: {train: [none]}\n");
    return resolve(parse_config(text, "a test"));
  };
  const ClusterConfig cluster = machines("H100", 1);
  const auto seconds = [&](const std::string& window) { return forecast_time(with(window, "tensor: 1"), cluster).step_seconds; };
  const double full = seconds(""), all = seconds(", window: 1024"), one = seconds(", window: 1024, window_layers: [2]");
  CHECK(all < 0.9 * full);
  CHECK(full - one == Approx((full - all) / 4).epsilon(1e-9));
  // A stage with windowed layers waits for one without.
  const ClusterConfig two = machines("H100", 2);
  const Config uneven = with(", window: 1024, window_layers: [0, 1]", "pipeline: 2, layers_per_stage: [2, 2]");
  const StepCosts costs = step_costs(uneven, two, model_seconds(uneven, two), {0, 1});
  CHECK(costs.stages[0].forward < 0.9 * costs.stages[1].forward);
  const Forecast forecast = forecast_time(uneven, two);
  const double simulated = simulate_step(uneven, two, lowered_schedule(uneven)).step.step_seconds;
  CHECK(simulated == Approx(forecast.step_seconds - forecast.parts.optimizer - forecast.parts.host).epsilon(2e-3));
}

TEST_CASE("the head's copy of a tied embedding is reduced as a full table") {
  const Config config = model("tensor: 2, pipeline: 2, data: 2, zero_stage: 1", true);
  const ClusterConfig cluster = machines("H100", 8);
  const LoweredSchedule plans = lowered_schedule(config);
  const WorldCosts costs = world_costs(config, cluster, plans);
  const double table = 32000.0 * 2048 / 2;  // elements on a tensor rank
  const GroupPlacement shard = place_of(2, 2, cluster), ends = place_of(2, 4, cluster);
  for (const int stage : {0, 1}) {
    CAPTURE(stage);
    const int unit = plans.units[static_cast<size_t>(stage)].tied_unit;
    REQUIRE(unit >= 0);
    const auto seconds = [&](ActionType type) { return costs.collective({type, stage, -1, unit}); };
    CHECK(seconds(ActionType::kUnshard) == Approx(all_gather_seconds(shard, 2 * table, cluster)).epsilon(1e-9));
    CHECK(seconds(ActionType::kReduceGrads) == Approx(all_gather_seconds(shard, 4 * table, cluster)).epsilon(1e-9));
    CHECK(seconds(ActionType::kReduceTied) == Approx(all_reduce_seconds(ends, 4 * table / 2, cluster)).epsilon(1e-9));
  }
}

TEST_CASE("the forecast counts the same gathers and reductions of embedding and head as the lists") {
  constexpr int kMicrobatches = 32;
  const char* const pipelines[] = {"pipeline: 1",
                                   "pipeline: 4",
                                   "pipeline: 4, schedule: gpipe",
                                   "pipeline: 4, schedule: interleaved_1f1b, virtual_stages: 2",
                                   "pipeline: 4, schedule: zb_h1",
                                   "pipeline: 4, schedule: zb_h2",
                                   "pipeline: 4, schedule: zb_v"};
  for (const char* pipeline : pipelines) {
    for (const bool tied : {false, true}) {
      const Config config = model(concat(pipeline, ", data: 1, zero_stage: 3"), tied);
      const LoweredSchedule plans = lowered_schedule(config);
      const SharedUses shared = shared_uses(config, stack_of("trireme"));
      CHECK(shared_uses(training_schedule(config), tied) == shared);
      const auto count = [&](ActionType type, int stage, const UnitRef& unit) {
        const int owner = unit.stage < 0 ? stage : unit.stage;
        const ActionList& list = plans.training[static_cast<size_t>(plans.stage_rank[static_cast<size_t>(owner)])];
        return std::ranges::count_if(list, [&](const Action& a) { return a.type == type && a.stage == owner && a.unit == unit.unit; });
      };
      const int last = static_cast<int>(plans.units.size()) - 1;
      const UnitRef embedding = plans.units.front().units_of_part.front().front(), head = plans.units.back().units_of_part.back().front();
      const bool one_table = plans.units.back().units_of_part.back().back().stage >= 0 || (tied && last == 0);
      CAPTURE(pipeline, tied, one_table, shared.head, shared.embedding, shared.table, count(ActionType::kUnshard, 0, embedding),
              count(ActionType::kUnshard, last, head), count(ActionType::kReduceGrads, 0, embedding));
      CHECK(shared.table == one_table);
      if (one_table) {
        CHECK(count(ActionType::kReduceGrads, 0, embedding) == kMicrobatches);
      } else {
        CHECK((count(ActionType::kUnshard, last, head) < kMicrobatches * 3 / 2) == shared.head);
        CHECK((count(ActionType::kUnshard, 0, embedding) < kMicrobatches * 3 / 2) == shared.embedding);
      }
    }
  }
}

TEST_CASE("a schedule from a file has the forecast of the same schedule by its name") {
  const test::Scratch scratch;
  for (const char* pipeline :
       {"pipeline: 1", "pipeline: 4", "pipeline: 4, schedule: gpipe", "pipeline: 4, schedule: interleaved_1f1b, virtual_stages: 2",
        "pipeline: 4, schedule: zb_h1", "pipeline: 4, schedule: zb_h2", "pipeline: 4, schedule: zb_v"})
    for (const char* zero : {"zero_stage: 1", "zero_stage: 2", "zero_stage: 3"})
      for (const bool tied : {false, true}) {
        CAPTURE(pipeline, zero, tied);
        const std::string parallel = concat(pipeline, ", data: 2, ", zero);
        Config config = model(parallel, tied);
        config.training.global_batch_size = 64;  // with few micro-batches, most uses of an interleaved schedule are not adjacent
        const ClusterConfig cluster = machines("H100", mesh_shape(config.parallel).world());
        const double named = forecast_time(config, cluster).step_seconds;
        config.parallel.schedule_file = scratch.write("schedule.txt", to_text(training_schedule(config)));
        config.parallel.schedule = "file";
        CHECK(forecast_time(config, cluster).step_seconds == Approx(named).epsilon(1e-9));
      }
}

TEST_CASE("a tied table on one rank is updated once") {
  const ClusterConfig cluster = machines("H100", 1);
  const Config tied = model("tensor: 1", true), untied = model("tensor: 1");
  const auto update = [&](const Config& config) { return step_costs(config, cluster, model_seconds(config, cluster), {0}).optimizer.front(); };
  const double fewer = static_cast<double>(parameter_count(tied.model)) / static_cast<double>(parameter_count(untied.model));
  CHECK(fewer < 0.95);
  CHECK(update(tied) / update(untied) == Approx(fewer).epsilon(1e-3));
}

TEST_CASE("the outer steps of a round sum all weights once, in however many fragments") {
  const ClusterConfig cluster = machines("H100", 16);
  Config config = model("data: 2, tensor: 8");
  config.parallel.islands = 2;
  const auto reduce = [&](int64_t steps, int64_t fragments) {
    config.training.local.steps = steps;
    config.training.local.fragments = fragments;
    return step_costs(config, cluster, model_seconds(config, cluster), {0}).reduce.front();
  };
  const double once = 12 * (reduce(4, 1) - reduce(6, 1));
  // Half of each sum leaves a rank and half arrives: 2 (n-1) / n of the 4 bytes of a weight of an eighth of the model.
  const double bytes = 4.0 * static_cast<double>(parameter_count(config.model)) / 8;
  CHECK(once == Approx(bytes / (*cluster.network.bandwidth)).epsilon(0.05));
  for (const int64_t fragments : {2, 4}) CHECK(12 * (reduce(4, fragments) - reduce(6, fragments)) == Approx(once).epsilon(0.05));
}

TEST_CASE("NCCL's order of operations exposes the outer sums that a delay would hide, but for the last one") {
  const ClusterConfig cluster = machines("H100", 4);
  Config config = model("data: 2, zero_stage: 1");
  config.parallel.islands = 2;
  config.training.local.steps = 4;
  const auto reduce = [&] { return step_costs(config, cluster, model_seconds(config, cluster), {0}).reduce.front(); };
  const double waited = reduce();
  CHECK(!simulate_step(config, cluster, lowered_schedule(config)).launch_order);
  config.training.local.delay = 1;
  const double hidden = step_costs(config, cluster, model_seconds(config, cluster), {0}).hidden_outer.front();
  CHECK(hidden > 0);
  CHECK(hidden == Approx(waited - reduce()));
  const LoweredSchedule schedule = lowered_schedule(config);
  const SimulatedWorld world = simulate_step(config, cluster, schedule);
  REQUIRE(world.launch_order);
  CHECK(world.launch_order->edges == std::vector<std::string>{"UNSHARD waits for all but the last sum of OUTER: 1 time"});
  // Embedding, 16 blocks and head are a unit each, so the only fragment has 18 sums.
  CHECK(world.launch_order->step_seconds - world.step.step_seconds == Approx(hidden * 17 / 18));
  const auto added = [&](const Config& other) {
    const SimulatedWorld simulated = simulate_step(other, cluster, lowered_schedule(other));
    const double of_step = simulated.step.step_seconds;
    return simulated.launch_order ? simulated.launch_order->step_seconds - of_step : 0;
  };
  const auto hidden_of = [&](const Config& other) { return step_costs(other, cluster, model_seconds(other, cluster), {0}).hidden_outer.front(); };
  Config fragments = config;
  fragments.training.local.fragments = 4;  // the first one has embedding, head and every fourth block
  CHECK(added(fragments) == Approx(hidden_of(fragments) * 5 / 6));
  Config buckets = fragments;
  buckets.parallel.bucket_size = int64_t{1} << 40;  // all blocks are one unit, of which each fragment has a piece
  CHECK(added(buckets) == Approx(hidden_of(buckets) * 2 / 3));
  Config adapters = fragments;  // nothing but the adapters of every fourth block is summed
  adapters.model.adapter.rank = 8;
  CHECK(added(adapters) == Approx(hidden_of(adapters) * 3 / 4));
  Config frozen = config;
  frozen.model.frozen = {"embedding.*", "blocks.?.*"};  // of 18 units, six blocks and the head are trained
  CHECK(added(frozen) == Approx(hidden_of(frozen) * 6 / 7));
  Config alone = config, waiting = config;
  alone.parallel.islands = 1;
  waiting.parallel.overlap = false;
  CHECK(added(alone) == 0);
  CHECK(added(waiting) == 0);
}

TEST_CASE("a step ends with what the run has: aggregation, noise, updates, outer steps or exchanges") {
  using enum ActionType;
  const Config plain = model("data: 2");
  const auto end_of = [](const Config& config) { return step_end_of(config).actions; };
  CHECK(end_of(plain) == std::vector{kNorm});
  CHECK(step_end_of(plain).updates);
  Config both = plain;
  both.security.aggregation.rule = AggregationRule::kMedian;
  CHECK(end_of(both) == std::vector{kAggregate, kNorm});
  both.security.privacy.clip = 1;  // each data rank adds noise of its own before the rule compares them
  CHECK(end_of(both) == std::vector{kAggregate, kNorm});
  Config noisy = plain;
  noisy.security.privacy.clip = 1;
  CHECK(end_of(noisy) == std::vector{kNoise, kNorm});
  Config local = plain;
  local.training.local.steps = 4;
  CHECK(end_of(local) == std::vector{kNorm, kOuter});
  for (const AsynchronousMode mode : {AsynchronousMode::kParameterServer, AsynchronousMode::kElasticAveraging, AsynchronousMode::kHogwild}) {
    Config asynchronous = plain;
    asynchronous.training.asynchronous.mode = mode;
    CHECK(end_of(asynchronous) == std::vector{kNorm, kExchange});
    CHECK(step_end_of(asynchronous).updates == (mode == AsynchronousMode::kElasticAveraging));
  }
}

TEST_CASE("only stage boundaries that leave a node use the network") {
  const Config config = model("tensor: 2, pipeline: 8");
  ClusterConfig cluster = machines("H100", 16);  // ranks 7 and 8, of the fourth and fifth stage, are on different nodes
  const auto seconds = [&] { return forecast_time(config, cluster).step_seconds; };
  const std::vector<int> stage_rank = stage_ranks_of(ScheduleKind::k1F1B, 8, 1);
  const StepCosts costs = step_costs(config, cluster, model_seconds(config, cluster), stage_rank);
  REQUIRE(costs.transfers.size() == 7);
  for (size_t s = 0; s < 7; ++s) {
    CAPTURE(s);
    CHECK((costs.transfers[s] > 2 * costs.transfers[0]) == (s == 3));
  }
  const double fast = seconds();
  *cluster.network.bandwidth /= 50;
  CHECK(seconds() > 1.05 * fast);
}

TEST_CASE("ranks that share cores are not simulated") {
  const Config config = model("pipeline: 4", false, "fp32");
  const LoweredSchedule plans = lowered_schedule(config);
  CHECK_NOTHROW(world_costs(config, machines("cpu", 4, 4), plans));
  CHECK_THROWS_WITH(world_costs(config, machines("cpu", 4, 3), plans), Catch::Contains("device.cores=3") && Catch::Contains("device.cores=4"));
}

TEST_CASE("a step of 405 billion parameters on 16,384 GPUs is proven deadlock-free and simulated from its configuration") {
  const LoadedConfig loaded = load_config(test::in_checkout("configs/llama-405b-16384gpu.yaml"));
  const Config config = resolve(loaded);
  const ClusterConfig cluster = machines("H100", 16384);
  const SimulatedWorld world = simulate_step(config, cluster, lowered_schedule(config), {16383});
  CHECK(world.ranks == 16384);
  CHECK(world.actions > 16384 * 2 * 4 * 16);  // F and B of four stages and sixteen micro-batches
  CHECK(!world.step.timelines.at(16383).empty());
  const Forecast forecast = forecast_time(config, cluster);
  CHECK(world.step.step_seconds == Approx(forecast.step_seconds - forecast.parts.optimizer - forecast.parts.host).epsilon(0.04));
}

}  // namespace trireme
