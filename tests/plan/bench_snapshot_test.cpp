// What users are shown by `trireme bench`, from given figures: whole texts, JSON and drawings.
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/scratch.h"
#include "tests/support/snapshot.h"
#include "trainer/bench/algorithms.h"
#include "trainer/bench/comm.h"
#include "trainer/bench/foreign_load.h"
#include "trainer/bench/kernels.h"
#include "trainer/bench/machine.h"
#include "trainer/bench/operations.h"
#include "trainer/bench/products.h"
#include "trainer/bench/scale.h"
#include "trainer/bench/step.h"
#include "trainer/commands/bench_command.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/files/table.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/attention_kernels.h"
#include "trainer/plan/fit.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/link_fit.h"

namespace trireme::test {
namespace {

using nlohmann::ordered_json;

bench::ScalePoint scale_point(int64_t ranks, double seconds, double tokens, double forecast) {
  return {.ranks = ranks, .seconds = seconds, .low = 0.93 * seconds, .high = 1.17 * seconds, .tokens = tokens, .forecast = forecast};
}

/// Twelve cores for ranks of three threads: from eight ranks on they share cores.
bench::ScaleResult scale_result(bool gpu) {
  std::vector<bench::ScalePoint> strong{scale_point(2, 0.81, 6144, 0.77), scale_point(4, 0.47, 6144, 0.52), scale_point(8, 0.44, 6144, 0.38),
                                        scale_point(16, 0.61, 6144, 0.29)},
      weak{scale_point(2, 0.81, 6144, 0.77), scale_point(4, 0.86, 12288, 0.82), scale_point(8, 1.32, 24576, 0.9)};
  strong[3].shares_cores = weak[2].shares_cores = true;
  if (gpu) {  // the two kinds differ in what is missing
    strong[1].forecast.reset();
    weak[2].shares_cores = false;
  } else {
    strong[2].shares_cores = true;
  }
  strong.push_back({.ranks = 32, .forecast = 0.21, .shares_cores = true, .left_out = "training.global_batch_size=12: not a multiple of 16"});
  weak.insert(weak.begin() + 2, {.ranks = 6, .left_out = "parallel.data=3: refused"});
  bench::ScaleResult result;
  result.strong = bench::strong_curve(std::move(strong));
  result.weak = bench::weak_curve(std::move(weak));
  result.threads = 3;
  result.places = gpu ? 8 : 4;
  result.gpu = gpu;
  result.foreign_share = gpu ? 0.07 : 0.234;
  result.figures = gpu ? "built-in figures of H100" : "the figures of cluster.yaml";
  return result;
}

}  // namespace

TEST_CASE("snapshot: scaling curves of worlds from two ranks on, as text, JSON and drawing") {
  for (const bool gpu : {false, true}) {
    const std::string name = gpu ? "bench/scale_gpu" : "bench/scale_cpu";
    check_snapshot(name + ".txt", bench::scale_text(scale_result(gpu)));
    check_snapshot(name + ".json", lines_of(bench::scale_json(scale_result(gpu))) + "\n");
    check_snapshot(name + ".svg", bench::scale_svg(scale_result(gpu), "run.yaml on <host> & co"));
  }
}

TEST_CASE("snapshot: collectives of our own beside the library's") {
  ordered_json rows = ordered_json::array();
  const auto add = [&](const char* operation, const char* algorithm, int64_t bytes, double microseconds, const ordered_json& model) {
    ordered_json error;
    if (!model.is_null()) error = model.get<double>() / microseconds - 1;
    rows.push_back({{"operation", operation},
                    {"algorithm", algorithm},
                    {"bytes", bytes},
                    {"microseconds", microseconds},
                    {"least", 0.9 * microseconds},
                    {"most", 2.3 * microseconds},
                    {"algorithm_gb_per_second", static_cast<double>(bytes) / microseconds / 1e3},
                    {"bus_gb_per_second", 1.5 * static_cast<double>(bytes) / microseconds / 1e3},
                    {"model_microseconds", model},
                    {"error", error}});
  };
  for (const int64_t bytes : {1024, 65536, 4194304}) {
    const double least = 11 + static_cast<double>(bytes) / 2500;
    add("all_reduce", "library", bytes, least, nullptr);
    add("all_reduce", "ring", bytes, 1.4 * least, 1.1 * least + 3);
    add("all_reduce", "tree", bytes, 1.2 * least, 1.3 * least);
    add("all_gather", "library", bytes, 0.5 * least, nullptr);
    add("all_gather", "ring", bytes, 0.7 * least, 1.2 * least - 5);
  }
  check_snapshot("bench/algorithms.txt", bench::algorithms_text(rows));

  // What `bench comm --fit` adds: two ranges of sizes for each operation that a cluster file knows.
  ordered_json measured = ordered_json::array();
  const std::array<std::pair<const char*, double>, 5> operations{
      {{"all_reduce", 1.5}, {"all_gather", 0.75}, {"reduce_scatter", 0.8}, {"all_to_all", 0.9}, {"send_receive", 0.4}}};
  for (int64_t bytes = 512; bytes <= 1 << 22; bytes *= 4)
    for (const auto& [operation, times] : operations) {
      const double size = static_cast<double>(bytes),
                   low = times * (bytes < 32768 ? 9 + size / 1900 : 31 + size / 6100) * (1 + 0.03 * std::sin(size));
      measured.push_back({{"operation", operation}, {"bytes", bytes}, {"microseconds", 1.2 * low}, {"low", low}, {"high", 1.9 * low}});
    }
  LinkConfig link;
  const ordered_json fit = fit_comm(measured, 6, link);
  ClusterConfig cluster;
  cluster.network = link;
  const std::string yaml = to_yaml(cluster);
  check_snapshot("bench/comm_fit.txt", concat(table_of(measured), "\n", table_of(fit), "\n", yaml));
}

TEST_CASE("snapshot: the steps of each algorithm on five ranks") {
  const Scratch scratch;
  const LaunchEnvironment environment;
  const std::vector<std::string> command_line;
  const auto add = [&](CLI::App& app, int& exit_code) { add_bench_command(app, environment, command_line, exit_code); };
  check_snapshot("bench/lists.txt", printed(scratch, add, "bench comm --algorithm all --lists --ranks 5 --sizes 28"));
}

TEST_CASE("snapshot: measured kernels") {
  ordered_json result;
  result["gemm"] = ordered_json::array();
  const std::array<std::pair<const char*, int64_t>, 3> products{{{"square", 2048}, {"qkv", 2304}, {"up", 3072}}};
  for (const auto& [name, outputs] : products)
    result["gemm"].push_back({{"product", name},
                              {"rows", 1536},
                              {"inputs", 768},
                              {"outputs", outputs},
                              {"forward_tflops", 0.0004 * static_cast<double>(outputs)},
                              {"backward_input_tflops", 0.00031 * static_cast<double>(outputs)},
                              {"backward_weight_tflops", 0.00022 * static_cast<double>(outputs)}});
  result["gemm_ceiling_tflops"] = 1.2288;
  for (const int64_t sequence : {256, 1024})
    result["attention"].push_back({{"head_size", 64},
                                   {"sequence", sequence},
                                   {"batch", 4096 / sequence},
                                   {"heads", 12},
                                   {"kv_heads", 4},
                                   {"forward_tflops", 0.001 * static_cast<double>(sequence)},
                                   {"backward_tflops", 0.0007 * static_cast<double>(sequence)},
                                   {"forward_backward_tflops", 0.0008 * static_cast<double>(sequence)}});
  result["cudnn_attention"] =
      to_json(AttentionKernels{{{.shape = "2 x 512 x 12 x 64", .reason = "", .ranks = 4, .difference = 0.003},
                                {.shape = "2 x 512 x 12 x 40", .reason = "it has no plan", .ranks = 3, .mismatch = false},
                                {.shape = "2 x 700 x 12 x 64", .reason = "it differs by 0.2", .ranks = 1, .mismatch = true}}});
  result["copy_gb_per_second"] = 17.25;
  for (const auto& [kernel, bytes] : {std::pair("norm_forward", 6.5e6), {"add", 19.25e6}})
    result["bandwidth"].push_back(
        {{"kernel", kernel}, {"microseconds", bytes / 11.5e3}, {"bytes", bytes}, {"gb_per_second", 11.5}, {"share_of_copy", 11.5 / 17.25}});
  const std::string text = bench::kernels_text(result);
  // Products of a model in which blocks differ, on three tensor ranks: equal shapes count together, equal sizes of other layers do not.
  const LoadedConfig config = parse_config(
      "model: {layers: 7, hidden_size: 96, heads: 6, kv_heads: 6, head_size: 32, ffn_size: 192, vocab_size: 500, window: 16, window_layers: [1, 2, "
      "5]}\n"
      "training: {steps: 1, sequence_length: 64}\n"
      "data: {train: [none]}\n",
      "run.yaml");
  ordered_json rows = ordered_json::array();
  for (const int ranks : {1, 3})
    for (const bench::Product& product : bench::products_of(resolve(config).model, 48, ranks))
      rows.push_back({{"product", product.name},
                      {"tensor ranks", ranks},
                      {"rows", product.rows},
                      {"inputs", product.inputs},
                      {"outputs", product.outputs},
                      {"layers", product.layers},
                      {"flops", static_cast<int64_t>(product.flops())}});
  check_snapshot("bench/kernels.txt", concat(text, "\n", table_of(rows)));
}

TEST_CASE("snapshot: a measured step") {
  ordered_json result = {{"parameters", 123456789},
                         {"precision", "bf16"},
                         {"tokens_per_step", 24576},
                         {"steps", 17},
                         {"step_seconds", {{"median", 0.4123}, {"low", 0.4012}, {"high", 0.4789}, {"mean", 0.4222}}},
                         {"tokens_per_second", {{"median", 59607.1}, {"low", 51317.6}, {"high", 61256.2}}},
                         {"model_tflops", 47.123},
                         {"gemm_ceiling_tflops", 81.75},
                         {"share_of_gemm_ceiling", 47.123 / 81.75},
                         {"mfu", 0.3141},
                         {"plain_products", {{"per_step", 36}, {"shapes", {"rows 100, inputs 41", "rows 7, inputs 43"}}}},
                         {"tuned_products", {{"timed", 12}, {"known", 3}, {"note", "the table of algorithms was not written"}}},
                         {"cudnn_attention", to_json(AttentionKernels{{{.shape = "2 x 512", .reason = "", .ranks = 4, .difference = 0.1},
                                                                       {.shape = "2 x 600", .reason = "", .ranks = 4, .difference = 0.2}}})},
                         {"memory_bytes", {{"parameters", 5000000000}, {"gradients", 1234567890}, {"activations", 3456789}, {"peak", 8765432109}}},
                         {"resident_bytes", {{"before", 100}, {"peak", 300000000}, {"beyond", 123456000}}}};
  for (const auto& [phase, seconds] : {std::pair("attention", 0.1234), {"feed-forward", 0.2345}, {"rest", 0.0544}})
    result["phases"].push_back({{"phase", phase}, {"seconds", seconds}, {"share", seconds / 0.4123}});
  const std::string some = bench::step_text(result);
  result["operations"] = ordered_json::array();
  for (const auto& [operation, layer, calls] : {std::tuple("product", "up", 24), {"product", "down", 23}, {"norm", "", 47}})
    result["operations"].push_back({{"operation", operation},
                                    {"layer", layer},
                                    {"calls", calls},
                                    {"seconds", 0.001 * calls},
                                    {"share", calls / 94.0},
                                    {"tflops", calls < 40 ? ordered_json(0.5 * calls) : ordered_json()},
                                    {"gb_per_second", calls < 40 ? ordered_json() : ordered_json(1234.5)},
                                    {"of_limit", calls == 23 ? ordered_json() : ordered_json(0.02 * calls)}});
  result["mfu"] = result["plain_products"] = result["tuned_products"] = result["cudnn_attention"] = result["resident_bytes"] = nullptr;
  result["steps"] = 1;
  check_snapshot("bench/step.txt", concat(some, "\n### of a CPU, with operations\n", bench::step_text(result)));
}

TEST_CASE("snapshot: a machine fitted to its timings") {
  ClusterConfig machine;
  machine.device.type = "cpu";
  machine = resolve_cluster(machine);
  machine.device.cores = 12;
  machine.device.core_scaling = 0.8;
  machine.devices_per_node = 1;
  ClusterConfig one = machine;
  one.device.cores = 1;
  MachineSamples samples{.name = "twelve", .cores = 12, .memory = 24e9, .kernel_seconds = 2.5e-6};
  double disturbance = 1;
  const auto disturbed = [&] { return disturbance = disturbance > 1.1 ? 0.93 : disturbance + 0.07; };
  for (const int64_t bytes : {2, 4})
    for (const double depth : {256, 1024})
      for (const bool accumulates : {false, true}) {
        ProductSample sample{512, 768, depth, bytes, accumulates, 0};
        sample.seconds = disturbed() * model_seconds(sample, one);
        samples.products.push_back(sample);
        sample.seconds = disturbed() * model_seconds(sample, machine);
        samples.shared_products.push_back(sample);
      }
  for (const double length : {128, 1024}) {
    samples.attention.push_back(model_seconds(AttentionSample{4, length, 8, 64, 4, 0, 0}, one));
    samples.attention.back().backward *= disturbed();
  }
  for (const double bytes : {1e6, 2e7}) {
    samples.elementwise.push_back({bytes < 2e6 ? "works on little" : "works on much", bytes, disturbed() * elementwise_seconds(bytes, 1, one)});
    samples.memory_traffic.push_back({bytes < 2e6 ? "moves little" : "moves much", bytes, disturbed() * traffic_seconds(bytes, 1, one)});
  }
  nlohmann::json comm = nlohmann::json::array();
  for (const char* operation : {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "send_receive"})
    for (const double bytes : {4096.0, 65536.0})
      comm.push_back(
          {{"operation", operation}, {"bytes", bytes}, {"microseconds", disturbed() * (operation[4] == 'r' ? 2 : 1) * (13 + bytes / 2700)}});
  for (const int64_t ranks : {2, 8})
    for (const LinkSample& sample : bench::link_samples(comm, ranks)) samples.links.push_back(sample);
  const FittedMachine fitted = fit_machine(samples);
  check_snapshot("bench/machine.txt", concat(residual_text(fitted.residuals), "\n", to_yaml(fitted.cluster)));
}

TEST_CASE("snapshot: what other processes take of twelve cores") {
  std::string stat = "cpu  9999 9999 9999 9999 9999 9999 9999 9999 9999 9999\n";
  for (int core = 0; core < 12; ++core)
    stat +=
        concat("cpu", core, " ", 100 + core, " ", 20 + core, " ", 30 + 2 * core, " 4000 500 ", 6 + core, " ", 7 + core, " ", 8 + 3 * core, " 50 0\n");
  std::string text;
  for (const std::set<int>& cores : {std::set{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}, {1, 10, 11}})
    text += concat(cores.size(), " cores were busy for ", bench::busy_seconds(stat, cores, 250), " s\n");
  const bench::CpuSeconds before{.wall = 10, .busy = 100, .own = 20}, after{.wall = 23, .busy = 171, .own = 63};
  text += concat("others used ", bench::foreign_share(before, after, 12), "\n");
  try {
    bench::refuse_busy_machine(bench::foreign_share(before, after, 12));
  } catch (const Error& error) {
    text += concat("exit code ", static_cast<int>(error.code()), ": ", error.what(), "\n");
  }
  check_snapshot("bench/foreign_load.txt", text);
}

TEST_CASE("snapshot: what measured reports say beside the times") {
  const auto rank = [](Communicator& world, const std::function<void(Context&)>& body) {
    Arena arena(Device::kCpu);
    Context ctx{Device::kCpu, &arena, 1};
    body(ctx);
    world.barrier();
  };
  const bench::Effort effort{.batch_seconds = 1e-5, .seconds = 1e-4, .world = nullptr};
  const auto over = [](const ordered_json& row, const char* one, const char* other) { return row[one].get<double>() / row[other].get<double>(); };
  std::string text;
  // Two sizes on three ranks: figures relative to the measured time, which is the only one that differs from run to run.
  bench::on_rank_threads(3, [&](Communicator& world) {
    rank(world, [&](Context& ctx) {
      const ordered_json rows = bench::bench_comm(ctx, world, {1000, 8192}, effort, 2);
      if (world.rank() != 0) return;
      for (const ordered_json& row : rows)
        text += concat(row["operation"].get<std::string>(), ", ", row["bytes"].get<int64_t>(), " bytes: bus/algorithm ",
                       over(row, "bus_gb_per_second", "algorithm_gb_per_second"), ", GB/s x us / bytes ",
                       std::round(1e6 * row["algorithm_gb_per_second"].get<double>() * over(row, "microseconds", "bytes")) / 1e6,
                       row["low"] <= row["high"] ? "" : ", low above high", "\n");
    });
  });
  const LoadedConfig loaded = parse_config(
      "model: {layers: 3, hidden_size: 32, heads: 4, kv_heads: 2, ffn_size: 48, vocab_size: 300}\n"
      "training: {steps: 1, sequence_length: 16, micro_batch_size: 2, global_batch_size: 12, precision: fp32, gradient_clip: 0.7}\n"
      "data: {train: [none]}\n"
      "run: {device: cpu}\n"
      "parallel: {data: 2, zero_stage: 1}\n",
      "run.yaml");
  Config alone = resolve(loaded, 2);
  alone.parallel = {};
  SelfCommunicator self("world");
  rank(self, [&](Context& ctx) {
    const ordered_json result = bench::bench_kernels(
        ctx, alone, {.tokens = 48, .square = 24, .sequences = {8, 16}, .head_sizes = {8, 16}, .working_set = 4096, .effort = effort});
    for (const ordered_json& row : result["gemm"])
      text += concat("gemm ", row["product"].get<std::string>(), " ", row["rows"].get<int64_t>(), " x ", row["inputs"].get<int64_t>(), " x ",
                     row["outputs"].get<int64_t>(), "\n");
    for (ordered_json row : result["attention"]) {
      for (const char* key : {"forward_tflops", "backward_tflops", "forward_backward_tflops"}) {
        CHECK(row[key] > 0);
        row.erase(key);
      }
      text += concat("attention ", row.dump(), "\n");
    }
    for (const ordered_json& row : result["bandwidth"])
      text += concat(row["kernel"].get<std::string>(), ": ", row["bytes"].get<double>(), " bytes, GB/s x us / bytes ",
                     std::round(1e6 * row["gb_per_second"].get<double>() * over(row, "microseconds", "bytes")) / 1e6, ", GB/s / share / copy ",
                     std::round(1e6 * over(row, "gb_per_second", "share_of_copy") / result["copy_gb_per_second"].get<double>()) / 1e6, "\n");
  });
  bench::on_rank_threads(2, [&](Communicator& world) {
    rank(world, [&](Context& ctx) {
      const bench::StepOptions options{.steps = 4, .warmup = 1, .effort = effort};
      ordered_json result = bench::bench_step(ctx, world, resolve(loaded, 2), options);
      if (world.rank() != 0) return;
      const double seconds = result["step_seconds"]["median"], tokens = result["tokens_per_second"]["median"];
      for (const auto& [rate, time] : {std::pair("low", "high"), {"high", "low"}})  // the lowest rate is that of the longest step
        CHECK(result["tokens_per_second"][rate].get<double>() * result["step_seconds"][time].get<double>() == Approx(tokens * seconds));
      double shares = 0, of_phases = 0;
      std::string phases;
      for (const ordered_json& phase : result["phases"]) {
        phases += concat(phases.empty() ? "" : ", ", phase["phase"].get<std::string>());
        shares += phase["share"].get<double>();
        of_phases += phase["seconds"].get<double>();
      }
      const auto thousandths = [](double value) { return std::round(1000 * value) / 1000; };
      text += concat("step: tokens ", thousandths(tokens * seconds), ", TFLOP per step ", 1e6 * result["model_tflops"].get<double>() * seconds,
                     "e-6, ", "share of the ceiling ",
                     thousandths(result["model_tflops"].get<double>() / result["gemm_ceiling_tflops"].get<double>() /
                                 result["share_of_gemm_ceiling"].get<double>()),
                     "\nphases ", phases, "; share of a second ", thousandths(shares / of_phases * seconds), "\n");
      for (const char* key : {"step_seconds", "tokens_per_second", "model_tflops", "gemm_ceiling_tflops", "share_of_gemm_ceiling", "phases",
                              "resident_bytes", "environment", "loss", "system_allocations"})
        result.erase(key);
      result["memory_bytes"].erase("workspace");  // depends on the instructions of the CPU
      result["memory_bytes"].erase("peak");
      text += lines_of(result) + "\n";
    });
  });
  // Work of each operation of a step: its rate times its seconds.
  bench::on_rank_threads(2, [&](Communicator& world) {
    rank(world, [&](Context& ctx) {
      const Config config = resolve(loaded, 2);
      Trainer trainer(ctx, world, config, true);
      trainer.initialise();
      const ordered_json rows = bench::operations_of(ctx, trainer, config, {.product_flops = 7e12, .bandwidth = 3e9});
      if (world.rank() != 0) return;
      double shares = 0, before = rows.front()["seconds"];
      std::set<std::string> operations;
      for (const ordered_json& row : rows) {
        const bool computes = !row["tflops"].is_null();
        const double rate = computes ? row["tflops"].get<double>() * 1e12 : row["gb_per_second"].get<double>() * 1e9, seconds = row["seconds"];
        CHECK(seconds <= std::exchange(before, seconds));
        shares += row["share"].get<double>();
        operations.insert(concat("operation ", row["operation"].get<std::string>(), " ", row["layer"].get<std::string>(), ": ",
                                 row["calls"].get<int64_t>(), " calls, ", std::llround(rate * seconds), computes ? " FLOPs" : " bytes",
                                 row["of_limit"].is_null() ? "" : concat(", limit ", rate / row["of_limit"].get<double>()), "\n"));
      }
      for (const std::string& operation : operations) text += operation;
      text += concat("shares of operations ", std::round(1e3 * shares) / 1e3, "\n");
    });
  });
  check_snapshot("bench/measured.txt", text);
}

}  // namespace trireme::test
