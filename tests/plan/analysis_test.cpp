#include "trainer/plan/analysis/analysis.h"

#include <cmath>
#include <map>

#include "parallel/pipeline/simulate.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/config/load.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/recompute.h"
#include "trainer/loop/state.h"
#include "trainer/model/flops.h"
#include "trainer/plan/place.h"

namespace trireme::test {
namespace {

using Catch::Matchers::Contains;

ClusterConfig cluster_of(int64_t nodes, const std::string& device = "H100") {
  ClusterConfig cluster;
  cluster.device.type = device;
  cluster.nodes = nodes;
  return resolve_cluster(cluster);
}

Config gpt(const std::vector<std::string>& sets = {}) {
  const std::string text =
      "model: {architecture: gpt2, layers: 24, hidden_size: 1024, heads: 16, vocab_size: 50304}\n"
      "parallel: {tensor: 2, pipeline: 4, data: 8, zero_stage: 1, sequence_parallel: true, layers_per_stage: [6, 6, 6, 6]}\n"
      "training: {steps: 1000, sequence_length: 1024, micro_batch_size: 1, global_batch_size: 128, precision: bf16, recompute: selective}\n"
      "data: {train: [data/train]}\n"
      "checkpoint: {every: 100, keep: 3}\n";
  return resolve(parse_config(text, "gpt.yaml", sets), 64);
}

/// The gpt() configuration with another schedule on the same four pipeline ranks.
Config scheduled(const std::string& schedule, int virtual_stages) {
  Config config = gpt();
  config.parallel.schedule = schedule;
  config.parallel.virtual_stages = virtual_stages;
  config.parallel.layers_per_stage = std::vector<int64_t>(static_cast<size_t>(4 * virtual_stages), 6 / virtual_stages);
  return config;
}

/// The gpt() configuration with a memory budget halfway between full and no recomputation.
Config budgeted() {
  ClusterConfig cluster = cluster_of(1, "cpu");
  cluster.device.cores = 8;  // a CPU: no runtime allowance, which the budget does not cover
  const auto most = [&](const char* recompute) { return largest_peak(counted_memory(gpt({concat("training.recompute=", recompute)}), cluster)); };
  return gpt({"training.recompute=budget", concat("training.recompute_budget=", static_cast<int64_t>((most("full") + most("none")) / 2))});
}

Forecast forecast_of(double step_seconds) {
  Forecast forecast;
  forecast.step_seconds = step_seconds;
  forecast.parts.compute = 0.7 * step_seconds;
  forecast.parts.recompute = 0.05 * step_seconds;
  return forecast;
}

const TextbookFigure& figure(const std::vector<TextbookFigure>& figures, const std::string& what) {
  for (const TextbookFigure& one : figures)
    if (one.what == what) return one;
  throw std::runtime_error("no figure " + what);
}

/// Bytes that the busiest rank sends in the second step, by mesh axis.
std::map<std::string, double> sent_bytes(const ParityLayout& layout, const Config& config) {
  const auto recorded = [&](int steps) {
    std::vector<CommunicationRecord> records;
    RankOptions options;
    options.records = &records;
    run_ranks(
        layout.world(), [&](Communicator& world) { train(world, config, steps, Device::kReference); }, options);
    return records;
  };
  const std::vector<CommunicationRecord> two = recorded(2), one = recorded(1);
  std::map<std::string, double> most;
  for (const char* axis : {"tensor", "pipeline", "shard", "replicate", "data"})
    for (size_t rank = 0; rank < two.size(); ++rank) most[axis] = std::max(most[axis], two[rank].wire_bytes(axis) - one[rank].wire_bytes(axis));
  return most;
}

std::map<std::string, double> planned_bytes(const Config& config) {
  std::map<std::string, double> said;
  for (const Traffic& traffic : traffic_of(config, forecast_of(1).parts)) said[traffic.what] = traffic.bytes;
  return said;
}

TEST_CASE("the traffic of each axis equals the traffic that a run records") {
  std::vector<ParityLayout> layouts;
  for (const int zero : {0, 1, 2, 3})
    for (const bool sp : {false, true}) layouts.push_back({{.tensor = 2, .data = 2, .zero = zero, .sequence_parallel = sp}});
  layouts.push_back({{.tensor = 2, .pipeline = 2, .data = 2, .zero = 2, .sequence_parallel = true, .recompute = RecomputeMode::kFull}});
  layouts.push_back({{.tensor = 2, .sequence_parallel = true, .recompute = RecomputeMode::kFull}});
  layouts.back().recompute_every = 2;
  layouts.push_back({{.tensor = 2, .pipeline = 2, .recompute = RecomputeMode::kFull}});
  layouts.back().recompute_every = 3;
  layouts.push_back(ParityLayout{{.pipeline = 3, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 2}}.with_layers(13));
  layouts.push_back({{.pipeline = 2, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}});
  layouts.push_back({{.data = 4, .zero = 3, .replicate = 2, .reshard = Reshard::kAfterStep}});
  for (const int zero : {0, 1, 2, 3}) {  // where not everything is trained
    ParityLayout layout{{.tensor = 2, .data = 2, .zero = zero, .sequence_parallel = zero > 0}};
    layout.frozen = true;
    layouts.push_back(layout);
    layout.frozen = false;
    layout.adapter = true;
    layouts.push_back(layout);
  }
  for (const ParityLayout& layout : layouts) {
    INFO(layout.str());
    const Config config = parity_config(ParityModel::kGpt2, layout, "fp32");
    std::map<std::string, double> sent = sent_bytes(layout, config), said = planned_bytes(config);
    CHECK(said["tensor"] == Approx(sent["tensor"]).epsilon(0.03));
    CHECK(said["pipeline"] == Approx(sent["pipeline"]).epsilon(1e-9));
    if (layout.pipeline > 1) continue;  // stages of such a small model differ too much from the mean
    CHECK(said["parameters"] + said["gradients"] == Approx(sent["shard"]).epsilon(0.06));
    CHECK(said["replicas"] == Approx(sent["replicate"]).epsilon(0.06));
  }
}

TEST_CASE("compression: the traffic of each axis is about that of a run") {
  for (ParityLayout layout : {ParityLayout{{.data = 4}}, ParityLayout{{.data = 4, .zero = 3, .replicate = 2}}}) {
    if (layout.zero > 0) layout.gradient_accumulation = GradientAccumulation::kFull;
    for (const CompressionMethod method : {CompressionMethod::kInt8, CompressionMethod::kPowerSgd}) {
      INFO(layout.str() << " " << name_of(method));
      Config config = parity_config(ParityModel::kGpt2, layout, "fp32");
      config.training.compression = {.method = method, .warmup_steps = 0};
      config.training.compression.rank = 1;
      std::map<std::string, double> sent = sent_bytes(layout, config), said = planned_bytes(config);
      // Messages of such small matrices have more bytes for scales and vectors than those of large ones.
      const double of_data = method == CompressionMethod::kPowerSgd ? sent["data"] : 0;  // otherwise only counts
      CHECK(said["parameters"] + said["gradients"] == Approx(sent["shard"] + of_data).epsilon(0.3));
      CHECK(said["replicas"] == Approx(sent["replicate"]).epsilon(0.3));
    }
  }
}

TEST_CASE("checkpoint size equals the state that the ranks write") {
  for (const char* precision : {"fp32", "bf16", "fp64"}) {
    ParityLayout layout{{.tensor = 2, .data = 2, .zero = 1}};
    const Config config = parity_config(ParityModel::kGpt2, layout, precision);
    std::vector<double> bytes(static_cast<size_t>(layout.world()), 0);
    run_ranks(layout.world(), [&](Communicator& world) {
      Arena arena(Device::kReference);
      Context ctx{Device::kReference, &arena, 1, nullptr};
      Trainer trainer(ctx, world, config, true);
      trainer.initialise();
      for (const StateTensor& tensor : state_tensors(trainer))
        bytes[static_cast<size_t>(world.rank())] += static_cast<double>(tensor.box.numel() * size_of(tensor.dtype));
    });
    double all = 0;
    for (const double of_rank : bytes) all += of_rank;
    const SavePlan plan = save_plan(config, cluster_of(1), 1, 100);
    INFO(precision);
    CHECK(plan.bytes == all);
    CHECK(plan.bytes == (std::string(precision) == "fp64" ? 24 : 12) * static_cast<double>(parameter_count(config.model)));
  }
}

TEST_CASE("cost of saving and the checkpoint interval") {
  const Config config = gpt();
  ClusterConfig cluster = cluster_of(8);
  cluster.node_mtbf = 8 * 36000;
  const SavePlan plan = save_plan(config, cluster, 0.5, 1000);
  CHECK(plan.write_seconds == Approx(plan.bytes / (8 * 0.71e9)));
  CHECK(plan.failures.mtbf == 36000);
  CHECK(plan.failures.stall == Approx(plan.bytes / 64 / 10e9));  // each of the 64 ranks has a shard
  CHECK(plan.failures.downtime == Approx(120 + 120 + plan.bytes / (8 * 2.6e9) + plan.write_seconds));
  CHECK(plan.young == Approx(std::sqrt(2 * plan.failures.stall * 36000)));
  CHECK(std::abs(plan.steps * 0.5 - plan.daly) <= 0.25);
  CHECK(plan.kept == 3);
  CHECK(plan.storage == 4 * plan.bytes);  // the oldest is deleted once the newest is complete
  CHECK(plan.configured.value() < plan.share_exponential + 1e-3);

  SECTION("custom storage and failure rates") {
    ClusterConfig own = cluster;
    own.storage = {.write = 0.071e9, .read = 5.2e9};
    own.restart = 20;
    const SavePlan slow = save_plan(config, own, 0.5, 1000);
    CHECK(slow.write_seconds == Approx(10 * plan.write_seconds));
    CHECK(slow.failures.downtime == Approx(120 + 20 + plan.bytes / (8 * 5.2e9) + slow.write_seconds));
    own.storage.write = 1e6;  // a checkpoint takes longer than Daly's interval
    const SavePlan slower = save_plan(config, own, 0.5, 1000);
    CHECK(slower.steps == std::ceil(slower.write_seconds / 0.5));
  }
  SECTION("detection of a lost rank on GPUs or several hosts, on the CPUs of one host, and as configured") {
    const auto seconds = [&](const Config& of, int64_t nodes, const std::string& device) {
      ClusterConfig machines = cluster_of(nodes, device);
      machines.devices_per_node = 64 / nodes;
      const SavePlan save = save_plan(of, machines, 0.5, 1000);
      return save.failures.downtime - machines.restart - save.bytes / (machines.storage.read * static_cast<double>(nodes)) - save.write_seconds;
    };
    CHECK(seconds(config, 1, "H100") == Approx(120));
    CHECK(seconds(config, 2, "cpu") == Approx(120));
    CHECK(seconds(config, 1, "cpu") == Approx(10));
    CHECK(seconds(gpt({"resilience.hang_seconds=33"}), 1, "H100") == Approx(33));
  }
  SECTION("synchronous saves") {
    const SavePlan waiting = save_plan(gpt({"checkpoint.asynchronous=false"}), cluster, 0.5, 1000);
    CHECK(waiting.failures.stall == plan.write_seconds);
    CHECK(waiting.failures.downtime == Approx(plan.failures.downtime - plan.write_seconds));
    CHECK(waiting.daly > plan.daly);
  }
  SECTION("only the first replica saves, all replicas load") {
    Config replicas = config;
    replicas.parallel.replicate = 4;
    const SavePlan of_replicas = save_plan(replicas, cluster, 0.5, 1000);
    CHECK(of_replicas.failures.stall == Approx(4 * plan.failures.stall));
    CHECK(of_replicas.write_seconds == Approx(2 * plan.write_seconds));  // four of each stage's sixteen ranks, which span two nodes
    CHECK(of_replicas.failures.downtime == Approx(plan.failures.downtime + 3 * plan.bytes / (8 * 2.6e9) + plan.write_seconds));
  }
  SECTION("besides the newest checkpoints, the best ones and milestones are kept") {
    Config other = config;
    other.checkpoint.keep = 2;
    other.checkpoint.keep_best = 1;
    other.checkpoint.keep_every = 400;
    CHECK(save_plan(other, cluster, 0.5, 1000).kept == 2 + 1 + 2);
    other.checkpoint.keep_best = 20;
    CHECK(save_plan(other, cluster, 0.5, 1000).storage == 10 * plan.bytes);  // no more than there are
  }
  SECTION("all checkpoints are kept, or only the last is written") {
    Config other = config;
    other.checkpoint.keep = 0;
    CHECK(save_plan(other, cluster, 0.5, 1000).storage == 10 * plan.bytes);
    other.checkpoint.every = 0;
    const SavePlan last = save_plan(other, cluster, 0.5, 1000);
    CHECK(last.storage == plan.bytes);
    CHECK_FALSE(last.configured);
  }
}

TEST_CASE("a checkpoint plan takes a given mean time between failures, and an automatic interval as its own") {
  Config config = gpt();
  config.checkpoint.every.reset();
  config.resilience.mean_time_between_failures = 7200;
  const SavePlan plan = save_plan(config, cluster_of(8), 0.5, 1000);
  CHECK(plan.failures.mtbf == 7200);
  CHECK(plan.daly == Approx(daly_interval(plan.failures.stall, 7200)));
  CHECK(plan.configured == plan.share_exponential);
  CHECK(plan.kept == std::min(std::ceil(1000 / plan.steps), 3.0));
  const std::string text = analysis_text(analyse(config, cluster_of(8), forecast_of(0.36), {}));
  CHECK_THAT(text, Contains("a failure every 2 h (resilience.mean_time_between_failures)") || Contains("a failure every 120 min (resilience"));
  CHECK_THAT(text, Contains("checkpoint.every is auto: the run will choose this interval from its own measurements"));
  CHECK_THAT(text, !Contains("a failure loses all progress"));
}

TEST_CASE("time, cost and energy for a number of tokens") {
  const Config config = gpt();
  ClusterConfig cluster = cluster_of(8);
  cluster.device.price_per_hour = 2.5;
  cluster.device.watts = 1000;
  const TrainingCost bill = training_bill(config, cluster, 0.36, 1e9 * 0.131072);
  CHECK(bill.steps == 1000);
  CHECK(bill.seconds == Approx(360));
  CHECK(bill.device_hours == Approx(6.4));
  CHECK(bill.cost.value() == Approx(16));
  CHECK(bill.kilowatt_hours.value() == Approx(6.4));
  CHECK(training_bill(config, cluster, 0.36, 131073).steps == 2);
  cluster.device.price_per_hour.reset();
  CHECK_FALSE(training_bill(config, cluster, 1, 1e9).cost);
}

TEST_CASE("scaling curves evaluate the same layout at other world sizes") {
  const Config config = gpt();
  std::map<int64_t, std::vector<Config>> asked;
  AnalysisOptions options;
  options.step_seconds = [&](const Config& scaled, const ClusterConfig& machines) -> std::optional<double> {
    const int64_t world = mesh_shape(scaled.parallel).world();
    CHECK(machines.devices() == world);
    CHECK(scaled.parallel.tensor == 2);
    asked[world].push_back(scaled);
    if (world == 16) return std::nullopt;
    return 0.02 * static_cast<double>(microbatches_of(scaled)) + 0.04;  // 0.04 s are serial
  };
  const Analysis analysis = analyse(config, cluster_of(8), forecast_of(0.36), options);
  CHECK(asked.begin()->first == 8);
  CHECK(asked.rbegin()->first == 1024);
  for (const auto& [world, configs] : asked) {
    const auto data = world / 8;
    REQUIRE(configs.size() == 2);
    CHECK(configs[0].training.global_batch_size == 128);
    CHECK(configs[1].training.global_batch_size == 16 * data);
  }
  REQUIRE(analysis.strong.points.size() == 7);  // 8 to 1024 without 16
  CHECK(analysis.strong.serial_share == Approx(0.04 / (0.04 + 0.02 * 128)));
  CHECK(analysis.weak.serial_share == Approx(0).margin(1e-12));
  CHECK(analysis.weak.points.back().efficiency == Approx(1));
}

TEST_CASE("links report required and available bandwidth") {
  const Config config = gpt();
  const std::vector<LinkNeed> needs = link_needs(config, cluster_of(8), forecast_of(0.4));
  std::map<std::string, LinkNeed> by_name;
  for (const LinkNeed& need : needs) by_name[need.traffic.what] = need;
  REQUIRE(by_name.size() == 4);
  const LinkNeed& tensor = by_name["tensor"];
  // Ten gathers for each block of the last rank, two for the head; and of the loss all-reduces of a maximum and of two sums for each token, in fp32.
  constexpr double kGather = 0.5 * 1024 * 1024 * 2, kLoss = 2 * 0.5 * 3 * 1024 * 4;
  CHECK(tensor.traffic.bytes == Approx(16 * ((6 * 10 + 2) * kGather + kLoss)).epsilon(1e-12));
  CHECK(tensor.bandwidth == Approx(tensor.traffic.bytes / (0.75 * 0.4)));
  CHECK(tensor.latency == Approx(0.04 / (16 * (62 + 4))));
  CHECK_FALSE(tensor.network);
  const std::pair<const char*, double> most[] = {{"[9, 5, 5, 5]", 92}, {"[5, 5, 9, 5]", 90}, {"[5, 5, 5, 9]", 92 + kLoss / kGather}};
  for (const auto& [layers, gathers] : most) {  // the pipeline rank with the most blocks has the most traffic
    CAPTURE(layers);
    const std::vector<LinkNeed> uneven = link_needs(gpt({concat("parallel.layers_per_stage=", layers)}), cluster_of(8), forecast_of(0.4));
    const auto of_tensor = std::ranges::find(uneven, std::string("tensor"), [](const LinkNeed& need) { return need.traffic.what; });
    REQUIRE(of_tensor != uneven.end());
    CHECK(of_tensor->traffic.bytes == Approx(16 * gathers * kGather).epsilon(1e-12));
  }
  const LinkNeed& gradients = by_name["gradients"];  // eight shards with stride 2
  CHECK(gradients.network);
  // A tensor rank holds half of the matrices, all norms, positions and biases after a row-parallel product, and 64 rows of padding: 25216 for 25152.
  const int64_t copied = (24 * 2 + 1) * 2 * 1024 + 1024 * 1024 + 24 * 2 * 1024, held = (parameter_count(config.model) + copied) / 2 + 64 * 1024;
  CHECK(gradients.traffic.bytes == Approx(static_cast<double>(held) / 4 * 7 / 8 * 4).epsilon(1e-12));
  CHECK(gradients.traffic.seconds == Approx((0.75 - 0.7 / 3) * 0.4 / 16));
  CHECK(by_name["parameters"].traffic.seconds == Approx(0.7 / 3 * 0.4 / 16));
  CHECK(gradients.available_bandwidth == 4 * cluster_of(8).network.bandwidth.value());  // four of the eight on a node, each with its own adapter
  CHECK(by_name["pipeline"].network);
  CHECK(by_name["pipeline"].available_bandwidth == cluster_of(8).network.bandwidth.value());  // a transfer uses one adapter
  CHECK(by_name["pipeline"].traffic.bytes == Approx(2 * 16 * 1024.0 * 1024 / 2 * 2));         // forward and back, half the sequence each
}

TEST_CASE("the textbook bubble of every schedule equals the simulated one if F, I and W take equally long") {
  const std::map<ActionType, double> seconds{
      {ActionType::kForward, 1}, {ActionType::kBackward, 2}, {ActionType::kBackwardInput, 1}, {ActionType::kBackwardWeight, 1}};
  for (const ScheduleKind kind : kScheduleKinds) {
    INFO(name_of(kind));
    const int v = default_virtual_stages(kind);
    const Config config = scheduled(name_of(kind), v);
    const Simulation simulation = simulate(make_schedule(kind, 4, v, 16), [&](const Action& action) {
      const auto one = seconds.find(action.type);
      return one == seconds.end() ? 0 : one->second;
    });
    const auto figures = textbook_figures(config, cluster_of(8), forecast_of(0.4), 1e9);
    CHECK(figure(figures, "bubble").textbook == Approx(simulation.bubble).margin(1e-12));
  }
}

TEST_CASE("textbook memory figures beside the forecast") {
  const Config config = gpt();
  Forecast forecast = forecast_of(0.4);
  for (int rank = 0; rank < 4; ++rank)
    forecast.memory.push_back({.parameters = 1, .gradients = 2, .optimizer = 3, .activations = 10.0 + rank, .runtime = 5, .peak = 30.0 + rank});
  forecast.worst_rank = 3;
  const auto figures = textbook_figures(config, cluster_of(8), forecast, 1e9);
  const double parameters = static_cast<double>(parameter_count(config.model)), sbh = 1024.0 * 1024;
  CHECK(figure(figures, "model states of a rank").textbook == Approx(parameters / 8 * (4 + 12.0 / 8)));
  CHECK(figure(figures, "model states of a rank").forecast == 6);
  CHECK(figure(figures, "activations of the first stage").textbook == Approx(24 * 34 * sbh / 2));
  CHECK(figure(figures, "activations of the first stage").forecast == 10);
  CHECK(figure(figures, "most loaded rank").forecast == 28);
  // Training time at the rate of large products: 6 FLOPs per parameter and token, 8 with full recomputation.
  const double rate = 64 * 0.70 * 989e12;
  CHECK(figure(figures, "training time").textbook == Approx(6 * parameters * 1e9 / rate));
  CHECK(figure(figures, "training time").forecast == training_bill(config, cluster_of(8), 0.4, 1e9).seconds);
  CHECK(figure(textbook_figures(gpt({"training.recompute=full"}), cluster_of(8), forecast, 1e9), "training time").textbook ==
        Approx(8 * parameters * 1e9 / rate));
}

TEST_CASE("textbook figures use the recomputation of each block") {
  const double sbh = 1024.0 * 1024, tokens = 1e9, rate = 64 * 0.70 * 989e12;
  Forecast forecast = forecast_of(0.4);
  forecast.memory.resize(4);
  const Config third = gpt({"training.recompute=full", "training.recompute_every=3"});
  const auto figures = textbook_figures(third, cluster_of(8), forecast, tokens);
  const double parameters = static_cast<double>(parameter_count(third.model)), scores = 5 * 16 * 1024.0 / 1024;
  CHECK(figure(figures, "training time").textbook == Approx((6 + 2.0 / 3) * parameters * tokens / rate));
  CHECK(figure(figures, "activations of the first stage").textbook == Approx(24 * sbh * (2 + 2 * (34 + scores) / 2) / 3));

  const Config budget = budgeted();
  const std::vector<Recompute> plan = recompute_policy(budget);
  const auto full = std::ranges::count(plan, Recompute::kFull), full_of_first = std::count(plan.begin(), plan.begin() + 6, Recompute::kFull);
  REQUIRE(full > 0);
  REQUIRE(full < 24);
  CHECK(figure(textbook_figures(budget, cluster_of(8), forecast, tokens), "training time").textbook ==
        Approx((6 + 2 * static_cast<double>(full) / 24) * parameters * tokens / rate));
  CHECK(figure(textbook_figures(budget, cluster_of(8), forecast, tokens), "tensor-parallel traffic").forecast ==
        Approx(16 * (6 * 10 + 3 * static_cast<double>(full_of_first) + 2) * 0.5 * sbh * 2));
}

TEST_CASE("the textbook training time uses the peak rate of the run's precision") {
  const auto seconds = [](const char* precision, const ClusterConfig& cluster) {
    const Config config = gpt({concat("training.precision=", precision)});
    return figure(textbook_figures(config, cluster, forecast_of(0.4), 1e9), "training time").textbook;
  };
  ClusterConfig cluster = cluster_of(8);
  CHECK_THROWS_WITH(check_against_cluster(gpt({"training.precision=fp64"}), cluster),
                    Catch::Contains("training.precision=fp64") && Catch::Contains("device type " + cluster.device.type));
  CHECK(seconds("fp16", cluster) == seconds("bf16", cluster));
  CHECK(seconds("bf16", cluster) * *cluster.device.peak_flops == Approx(seconds("fp32", cluster) * *cluster.device.peak_flops_fp32));
  // On a CPU the figures are those of one core: two ranks on eight cores have four each.
  cluster = cluster_of(1, "cpu");
  cluster.devices_per_node = 2;
  cluster.device.cores = 2;
  const double one_core = seconds("fp32", cluster);
  CHECK(seconds("fp64", cluster) == Approx(2 * one_core));
  cluster.device.cores = 8;
  CHECK(seconds("fp32", cluster) == Approx(one_core / 4));
}

TEST_CASE("textbook activations exist only for schedules with a published formula") {
  const auto activations = [](const char* schedule, int virtual_stages) -> std::optional<double> {
    const Config config = scheduled(schedule, virtual_stages);
    Forecast forecast = forecast_of(0.4);
    forecast.memory.resize(4);
    for (const TextbookFigure& one : textbook_figures(config, cluster_of(8), forecast, 1e9))
      if (one.what == "activations of the first stage") return one.textbook;
    return std::nullopt;
  };
  const double usual = 24 * 34 * 1024.0 * 1024 / 2;
  CHECK(activations("1f1b", 1).value() == Approx(usual));
  CHECK(activations("zb_h1", 1).value() == Approx(usual));
  CHECK(activations("gpipe", 1).value() == Approx(usual * 16 / 4));  // all micro-batches, a quarter of the blocks
  CHECK(activations("interleaved_1f1b", 2).value() == Approx(usual * (1 + 3.0 / 8)));
  CHECK_FALSE(activations("zb_h2", 1));
  CHECK_FALSE(activations("zb_v", 2));
}

TEST_CASE("the textbook traffic of ZeRO-3 counts every micro-batch") {
  const Config config = gpt({"parallel.zero_stage=3"});
  const auto figures = textbook_figures(config, cluster_of(8), forecast_of(0.4), 1e9);
  const TextbookFigure& sent = figure(figures, "gradient and parameter traffic");
  CHECK(sent.textbook == Approx(16 * 3 * 2 * static_cast<double>(parameter_count(config.model)) / 8 * 7 / 8));
  CHECK(sent.forecast < 2 * sent.textbook);  // the forecast reduces gradients in fp32
  CHECK(sent.forecast > sent.textbook);
}

TEST_CASE("text and JSON of an analysis are complete") {
  AnalysisOptions options;
  options.step_seconds = [](const Config& scaled, const ClusterConfig&) { return std::optional(0.02 * microbatches_of(scaled) + 0.04); };
  const Analysis analysis = analyse(gpt(), cluster_of(8), forecast_of(0.36), options);
  const std::string text = analysis_text(analysis);
  for (const char* part : {"Hoffmann 2022", "Besiroglu 2024", "device hours", "Amdahl", "Gustafson", "required GB/s", "Daly 2006", "checkpoint.every",
                           "textbook", "arXiv:2407.21783", "storage", "as on 8 devices"})
    CHECK_THAT(text, Contains(part));
  ClusterConfig own = cluster_of(8);
  own.node_mtbf = 30 * 86400;
  own.storage.write = 2e9;
  const std::string given = analysis_text(analyse(gpt(), own, forecast_of(0.36), options));
  CHECK_THAT(given, Contains("a node fails every 30 days (as given)") && Contains("storage writes 2 GB/s per node (as given)"));
  CHECK_THAT(given, !Contains("arXiv:2407.21783"));
  const nlohmann::ordered_json json = analysis_json(analysis);
  for (const char* key : {"compute", "training", "strong_scaling", "weak_scaling", "links", "saving", "textbook"}) CHECK(json.contains(key));
  CHECK(nlohmann::ordered_json::parse(json.dump()) == json);
  CHECK(json["training"]["cost"].is_null());
  CHECK(json["training"]["seconds_with_failures"].get<double>() * analysis.saving.share_exponential == Approx(analysis.bill.seconds));
  CHECK(json["strong_scaling"]["points"].size() == 8);
  CHECK(json["compute"]["fits"][1]["same_loss"]["loss"].get<double>() == Approx(json["compute"]["fits"][1]["loss"].get<double>()));
}

TEST_CASE("an analysis with a given number of tokens, and invalid requests") {
  AnalysisOptions options;
  options.tokens = 2e9;
  const Analysis analysis = analyse(gpt(), cluster_of(8), forecast_of(0.36), options);
  CHECK(analysis.compute[1].tokens == 2e9);
  CHECK(analysis.strong.points.empty());
  options.tokens = 0;
  CHECK_THROWS_WITH(analyse(gpt(), cluster_of(8), forecast_of(0.36), options), Contains("tokens is 0"));
  Config epochs = gpt();
  epochs.training.steps.reset();
  epochs.training.epochs = 1;
  CHECK_THROWS_WITH(analyse(epochs, cluster_of(8), forecast_of(0.36)), Contains("training.epochs") && Contains("--tokens N"));
}

}  // namespace
}  // namespace trireme::test
