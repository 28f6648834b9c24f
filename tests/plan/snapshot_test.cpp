// What users are shown by `trireme plan`: whole texts, JSON and drawings.
#include <nlohmann/json.hpp>
#include <sstream>

#include "kernels/core/check.h"
#include "parallel/pipeline/schedule.h"
#include "parallel/pipeline/simulate.h"
#include "tests/parallel/toy_stages.h"
#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "tests/support/scratch.h"
#include "tests/support/snapshot.h"
#include "trainer/commands/plan_command.h"
#include "trainer/config/load.h"
#include "trainer/config/write.h"
#include "trainer/data/token_writer.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/report.h"
#include "trainer/plan/run_forecast.h"
#include "trainer/plan/svg.h"
#include "trainer/plan/world_trace.h"
#include "trainer/tokenizer/tokenizer.h"

namespace trireme::test {
namespace {

using nlohmann::ordered_json;

std::string planned(const Scratch& scratch, const std::string& arguments) {
  return printed(
      scratch, [](CLI::App& app, int& exit_code) { add_plan_command(app, exit_code); }, "plan " + arguments);
}

std::string planned_json(const Scratch& scratch, const std::string& arguments) {
  return lines_of(ordered_json::parse(planned(scratch, arguments + " --json"))) + "\n";
}

/// More pipeline ranks than are shown, three replicas, a size of the model in each warning, and links whose switches differ in oversubscription.
const char* const kPipeline =
    "model: {architecture: gpt2, layers: 24, hidden_size: 1100, heads: 20, ffn_size: 4410, vocab_size: 50257}\n"
    "parallel: {tensor: 2, pipeline: 12, data: 12, zero_stage: 1, replicate: 3, sequence_parallel: true}\n"
    "training: {steps: 5000, sequence_length: 1024, micro_batch_size: 2, global_batch_size: 240, precision: bf16, recompute: selective}\n"
    "data: {train: [none]}\n"
    "checkpoint: {every: 300, keep: 3, keep_every: 1200}\n";
const char* const kResilient = "resilience: {elastic: replicas, minimum_replicas: 2, peer_copies: 2, peer_every: 7}\n";
const char* const kTwoLevels =
    "name: two levels\n"
    "nodes: 36\n"
    "devices_per_node: 8\n"
    "device: {type: H100, price_per_hour: 2.35, watts: 1130}\n"
    "network: {bandwidth: 6.0e+9, latency: 8.0e-6}\n"
    "level_nodes: [4, 12]\n"
    "level_oversubscription: [2, 5]\n"
    "software: {straggler: 1.15}\n"
    "storage: {write: 0.3e+9, read: 1.7e+9}\n"
    "node_mtbf: 5.0e+6\n"
    "restart: 210\n";

/// CPU hosts with a slow network.
const char* const kSlow =
    "name: slow\n"
    "nodes: 5\n"
    "devices_per_node: 4\n"
    "device: {type: cpu, cores: 16, memory: 8.0e+9, price_per_hour: 0.04, watts: 7.5}\n"
    "network: {bandwidth: 2.0e+7, latency: 1.0e-4}\n";

const std::string kSmallModel =
    "model: {layers: 8, hidden_size: 768, heads: 12, kv_heads: 4, vocab_size: 32000}\n"
    "data: {train: [none]}\n";
const std::string kSearched =
    kSmallModel +
    "parallel: {data: 4, zero_stage: 1}\n"
    "training: {steps: 600, sequence_length: 512, micro_batch_size: 2, global_batch_size: 56, precision: bf16, gradient_clip: 0}\n";

}  // namespace

TEST_CASE("snapshot: plan of twelve pipeline ranks with all that --analyse says") {
  const Scratch scratch;
  const std::string arguments = concat(scratch.write("run.yaml", concat(kPipeline, kResilient)), " --cluster ",
                                       scratch.write("cluster.yaml", kTwoLevels), " --tokens 3e11 --simulate --analyse");
  check_snapshot("plan/pipeline.txt", planned(scratch, arguments));
}

TEST_CASE("snapshot: plan of three uneven pipeline ranks as JSON") {
  const Scratch scratch;
  const std::string sets =
      " --set parallel.pipeline=3 --set parallel.layers_per_stage=[6,10,8] --set parallel.tensor=4 --set model.ffn_size=4412 --set "
      "training.recompute=full"
      " --set resilience.peer_copies=1 --cluster-set nodes=18";
  ordered_json json =
      ordered_json::parse(planned(scratch, concat(scratch.write("run.yaml", concat(kPipeline, kResilient)), " --cluster ",
                                                  scratch.write("cluster.yaml", kTwoLevels), sets, " --tokens 3e11 --simulate --analyse --json")));
  check_snapshot("plan/analysis.json", lines_of(json["analysis"]) + "\n");
  json.erase("analysis");
  check_snapshot("plan/pipeline.json", lines_of(json) + "\n");
}

TEST_CASE("snapshot: plan of an elastic job with more worlds than are shown, on a slow network that compression would help") {
  const Scratch scratch;
  const std::string config =
      scratch.write("run.yaml",
                    "model: {layers: 6, hidden_size: 512, heads: 8, kv_heads: 2, vocab_size: 8000}\n"
                    "parallel: {data: 20, zero_stage: 3, gradient_accumulation: sharded}\n"
                    "training: {steps: 900, sequence_length: 256, micro_batch_size: 3, global_batch_size: 120, precision: fp32}\n"
                    "data: {train: [none]}\n"
                    "resilience: {elastic: replicas, minimum_replicas: 2, peer_copies: 3, peer_every: 1, "
                    "mean_time_between_failures: 2000}\n"
                    "checkpoint: {every: auto}\n");
  const std::string cluster = scratch.write("cluster.yaml", kSlow);
  check_snapshot("plan/elastic.txt", planned(scratch, concat(config, " --cluster ", cluster, " --cluster-set device.memory=3.3e8 --analyse")));
  // ZeRO-2 with one micro-batch sums gradients once and gathers parameters once: three encodings are faster. The interval of the copies is too short.
  const std::string gathered =
      concat(config, " --cluster ", cluster, " --cluster-set network.bandwidth=1000000 --set resilience.peer_copies=4 --set parallel.zero_stage=2",
             " --set parallel.gradient_accumulation=auto --set training.global_batch_size=60");
  check_snapshot("plan/compression.txt", planned(scratch, gathered));
  check_snapshot("plan/compression.json", planned_json(scratch, gathered));
}

TEST_CASE("snapshot: plan of steps with two relieved ranks of one replica") {
  const Scratch scratch;
  const std::string arguments =
      concat(scratch.write("run.yaml",
                           "model: {layers: 8, hidden_size: 1024, heads: 16, vocab_size: 32000}\n"
                           "parallel: {pipeline: 4, data: 3, zero_stage: 1, schedule: 1f1b}\n"
                           "training: {steps: 40, sequence_length: 1024, micro_batch_size: 1, global_batch_size: 24, precision: bf16}\n"
                           "data: {train: [none]}\n"
                           "resilience: {reroute: [1/0, 1/2]}\n"),
             " --cluster H100 --cluster-set devices_per_node=6 --simulate");
  check_snapshot("plan/reroute.txt", planned(scratch, arguments));
  ordered_json json = ordered_json::parse(planned(scratch, arguments + " --json"));
  json.erase("memory");  // another snapshot has its keys
  check_snapshot("plan/reroute.json", lines_of(json) + "\n");
}

TEST_CASE("snapshot: plan of islands, of each asynchronous mode and of a federation") {
  const Scratch scratch;
  const std::string cluster = scratch.write("cluster.yaml", kSlow);
  std::string text, json;
  const auto add = [&](const std::string& what, const std::string& arguments) {
    text += concat("### ", what, "\n", planned(scratch, arguments), "\n");
    const ordered_json all = ordered_json::parse(planned(scratch, arguments + " --json"));
    for (const char* key : {"local", "asynchronous", "federation", "privacy", "packing"})
      if (all.contains(key)) json += concat(what, ", ", key, ": ", all[key].dump(), "\n");
  };
  const std::string local = concat(kSmallModel,
                                   "parallel: {islands: 3, tensor: 2, data: 2, zero_stage: 2}\n"
                                   "training: {steps: 400, sequence_length: 512, micro_batch_size: 2, global_batch_size: 48, precision: bf16, "
                                   "local: {steps: 25, fragments: 5}}\n");
  const std::string local_cluster = " --cluster H100 --cluster-set devices_per_node=6 --cluster-set nodes=2";
  add("local", scratch.write("local.yaml", local) + local_cluster);
  add("local, memory by formula", concat(scratch / "local.yaml", local_cluster, " --cluster-set software.stack=torchtitan"));
  for (const char* mode : {"mode: parameter_server, apply_after: 2", "mode: parameter_server, apply_after: 1",
                           "mode: elastic_averaging, every: 20, moving_rate: 0.2", "mode: hogwild"}) {
    const std::string asynchronous =
        concat(kSmallModel, std::string(mode).ends_with("apply_after: 1") ? "resilience: {backup_replicas: 2}\n" : "",
               "parallel: {islands: 3, data: 1}\nrun: {device: cpu}\ntraining: {steps: 400, sequence_length: 512, micro_batch_size: 2, ",
               "global_batch_size: 48, precision: fp32, optimizer: {name: sgd}, asynchronous: {", mode, "}}\n");
    const std::string arguments = concat(scratch.write("asynchronous.yaml", asynchronous), " --cluster ", cluster,
                                         " --cluster-set nodes=1 --cluster-set devices_per_node=3 --cluster-set device.cores=9");
    add(mode, arguments);
    if (std::string(mode) == "mode: hogwild") continue;  // fp32 only, of which the other stacks have no figures
    add(concat(mode, ", memory by formula"), arguments + " --cluster-set software.stack=torchtitan --set training.precision=bf16");
  }
  add("federation",
      concat(in_checkout("configs/federation.yaml"), " --set security.federation.members=5 --cluster ", cluster, " --cluster-set nodes=1"));
  check_snapshot("plan/islands.txt", text);
  check_snapshot("plan/islands.json", json);
}

TEST_CASE("snapshot: plan of a private run whose eight data ranks add noise, and of packed documents with masks") {
  const Scratch scratch;
  write_tokens(scratch / "private", 64 * 5000);
  const std::string cluster = scratch.write("cluster.yaml", kSlow);
  const std::string private_run =
      concat(in_checkout("configs/trust.yaml"), " --cluster ", cluster, " --cluster-set nodes=2 --set data.train=[", scratch / "private", "]");
  check_snapshot("plan/private.txt", planned(scratch, private_run));

  TokenIndex index;
  index.tokenizer = "bytes";
  index.tokenizer_digest = Tokenizer::open("bytes").digest();
  index.vocab_size = Tokenizer::open("bytes").vocab_size();
  TokenWriter writer(scratch / "packed", index);
  for (int64_t document = 0; document < 300; ++document) {
    writer.append(std::vector<int32_t>(static_cast<size_t>(11 + 37 * document % 211), static_cast<int32_t>(document % 97)));
    writer.end_document();
  }
  writer.commit();
  const std::string packed =
      concat(scratch.write("packed.yaml", concat("model: {layers: 4, hidden_size: 64, heads: 4, tied_embeddings: true}\n"
                                                 "parallel: {pipeline: 2, data: 2, zero_stage: 1}\n"
                                                 "training: {steps: 50, sequence_length: 128, micro_batch_size: 2, global_batch_size: 96}\n"
                                                 "data: {tokenizer: bytes, train: [",
                                                 scratch / "packed", "], packing: best_fit, document_mask: true}\n",
                                                 "run: {device: cpu}\nresilience: {rebalance: micro_batches}\n")),
             " --cluster ", cluster, " --cluster-set nodes=1");
  check_snapshot("plan/packed.txt", planned(scratch, packed));
  check_snapshot("plan/packed.json", planned_json(scratch, packed));
}

TEST_CASE("snapshot: plan of another system's software, of a device that is tight and of one that is too small") {
  const Scratch scratch;
  const std::string run = concat(scratch.write("run.yaml", kPipeline), " --set parallel.pipeline=6 --set parallel.replicate=1 --set model.heads=10",
                                 " --cluster ", scratch.write("cluster.yaml", kTwoLevels), " --cluster-set nodes=18");
  std::string text;
  for (const char* sets : {" --cluster-set software.stack=torchtitan --cluster-set software.compiled=true --cluster-set software.fp8=rowwise"
                           " --cluster-set software.context=2",
                           " --cluster-set device.memory=7.7e9", " --cluster-set device.memory=6.3e9"})
    text += concat("###", sets, "\n", planned(scratch, run + sets), "\n");
  check_snapshot("plan/software.txt", text);
}

TEST_CASE("snapshot: a search over layouts whose ranks idle with this batch") {
  const Scratch scratch;
  check_snapshot("plan/search.txt", planned(scratch, scratch.write("run.yaml", kSearched) + " --cluster H100 --search --nodes 3"));
}

TEST_CASE("snapshot: a search over numbers of nodes, as text and as JSON") {
  const Scratch scratch;
  const std::string arguments = scratch.write("run.yaml", kSearched) +
                                " --cluster A100-40GB --cluster-set devices_per_node=2 --cluster-set device.price_per_hour=1.7 --cluster-set "
                                "device.memory=3.2e9 --search --nodes auto";
  check_snapshot("plan/nodes.txt", planned(scratch, arguments));
  const ordered_json json = ordered_json::parse(planned(scratch, arguments + " --json"));
  ordered_json some;
  for (const char* key : {"layout", "cluster", "advice", "why", "batches", "nodes"}) some[key] = json.at(key);
  for (const char* list : {"layouts", "too_large"})
    for (const ordered_json& layout : json.at(list))
      some[list].push_back({{"layout", layout["layout"]}, {"step_seconds", layout["step_seconds"]}, {"reason", layout["reason"]}});
  check_snapshot("plan/nodes.json", lines_of(some) + "\n");
}

TEST_CASE("snapshot: a search in which nothing fits") {
  const Scratch scratch;
  const std::string arguments =
      scratch.write("run.yaml", kSearched) + " --cluster H100 --cluster-set devices_per_node=4 --cluster-set device.memory=2.5e9 --search --nodes 2";
  check_snapshot("plan/too_large.txt", planned(scratch, arguments));
}

TEST_CASE("snapshot: a table of more layouts than are shown, and the head of a proposed file") {
  const auto layout_of = [](const std::string& name, double seconds, double peak, double limit) {
    RankedLayout plan;
    plan.config = resolve(parse_config("model: {layers: 16, hidden_size: 256, heads: 8, vocab_size: 1000}\n"
                                       "parallel: {pipeline: 4}\n"
                                       "training: {steps: 10, sequence_length: 128, global_batch_size: 16, precision: bf16}\n"
                                       "data: {train: [tokens]}\n",
                                       "plan.yaml"),
                          4);
    plan.written = plan.config;
    plan.layout = name;
    plan.forecast.step_seconds = seconds;
    plan.forecast.tokens_per_second_per_device = 16 * 128 / seconds / 4;
    plan.forecast.mfu = 0.03 / seconds;
    plan.forecast.bubble = 0.1 + 0.01 * seconds;
    set_memory(plan.forecast, {{.peak = 0.3 * peak}, {.peak = peak}, {.peak = 0.7 * peak}, {.peak = 0.9 * peak}}, limit, 0.08);
    return plan;
  };
  SearchResult result;
  result.legal = 4711;
  result.tried = 815;
  result.advice = "the advice";
  result.why = "why the first one is the best";
  for (int i = 0; i < 14; ++i) {
    result.layouts.push_back(layout_of(concat("layout", i), 0.07 * (1 + i), 1e9 * (4.1 - 0.1 * i), 4.2e9));
    if (i > 0) result.layouts.back().reason = concat(100 * i, ".0 % slower: a reason");
  }
  for (int i = 0; i < 6; ++i) {
    result.too_large.push_back(layout_of(concat("large", i), 0.05 * (2 + i), 1e9 * (5.5 + i), 4.2e9));
    result.too_large.back().reason = concat("does not fit: reason ", i);
  }
  result.batches = {{12, "smaller", 9000}, {24, "larger", 11500}};
  ClusterConfig cluster;
  cluster.nodes = 3;
  cluster.devices_per_node = 4;
  cluster.software.stack = "nanotron";
  cluster.software.straggler = 1.25;
  cluster = resolve_cluster(cluster);
  check_snapshot("plan/search_table.txt", concat(search_text(result), "\n", proposed_yaml(result.layouts.front(), cluster)));
}

TEST_CASE("snapshot: the forecast that a run prints") {
  const LoadedConfig config =
      parse_config(kSmallModel +
                       "parallel: {pipeline: 2, data: 4, zero_stage: 1}\n"
                       "training: {steps: 600, sequence_length: 512, micro_batch_size: 2, global_batch_size: 64, precision: bf16}\n"
                       "resilience: {reroute: [2/1]}\n",
                   "run.yaml");
  const RunForecast forecast = *forecast_run(resolve(config, 8), 8, 4, "NVIDIA A100-SXM4-40GB");
  check_snapshot("plan/run_forecast.txt",
                 concat(forecast_text(forecast), "\n", forecast_json(forecast).dump(), "\npeak ", *forecast.peak_flops / 1e12, " TFLOP/s\n"));
}

namespace {

double seconds_of(const Action& action) {
  if (!is_compute(action.type)) return 0;
  return (action.type == ActionType::kBackward ? 2 : 1) * (1 + 0.25 * action.stage);
}

/// The rows, the words and the boxes at both ends of a long drawing.
std::string ends_of(const std::string& svg) {
  constexpr size_t kEnds = 4;
  std::istringstream lines(svg);
  std::vector<std::string> rows, boxes, others;
  for (std::string line; std::getline(lines, line);) {
    const bool box = line.find("<title>") != line.npos, row = !box && line.find(" % idle") != line.npos;
    (box ? boxes : row ? rows : others).push_back(line);
  }
  std::string text;
  for (const std::string& line : others) text += line + "\n";
  for (const auto* kind : {&rows, &boxes}) {
    text += concat("-- ", kind->size(), " lines\n");
    for (size_t i = 0; i < kind->size(); ++i)
      if (i < kEnds || i + kEnds >= kind->size()) text += (*kind)[i] + "\n";
  }
  return text;
}

}  // namespace

TEST_CASE("snapshot: drawings of schedules, whole, cut in time and cut in ranks") {
  check_snapshot("plan/interleaved.svg", pipeline_svg(simulate(interleaved_1f1b(3, 3, 6), seconds_of).ranks, "a < b & c"));
  check_snapshot("plan/zb_v.svg", pipeline_svg(simulate(lower(zb_v(3, 5), toy_units(6, 2, false, true), {}), seconds_of).ranks));
  check_snapshot("plan/cut_in_time.svg", ends_of(pipeline_svg(simulate(one_forward_one_backward(7, 300), seconds_of).ranks, "seven ranks")));
  std::vector<Timeline> ranks;
  for (int rank = 0; rank < 700; ++rank)
    for (int microbatch = 0; microbatch < 11; ++microbatch) {
      const double begin = 3.0 * microbatch + 0.002 * rank;
      if (microbatch == 0) ranks.emplace_back();
      ranks.back().push_back({{ActionType::kForward, rank, microbatch}, begin, begin + 1 + 0.001 * rank});
    }
  check_snapshot("plan/cut_in_ranks.svg", ends_of(pipeline_svg(ranks, "many ranks")));
}

TEST_CASE("snapshot: the trace of some ranks of a simulated world") {
  const MeshShape mesh{2, 1, 3, 2};
  const std::vector<StageUnits> units = toy_units(2, 2, false);
  const ActionLists plan = lower(one_forward_one_backward(2, 2), units, {.unshard_each_use = true});
  const WorldCosts costs{.seconds = [](const Action& action) { return is_receive(action.type) ? 0.25 : seconds_of(action); },
                         .collective = [](const Action&) { return 0.75; },
                         .slowdown = {{3, 1.5}},
                         .tensor = [](const Action& action) { return is_compute(action.type) ? 0.125 : 0; }};
  const WorldSimulation run = simulate_world(lists_of_ranks(plan, mesh), mesh, units, costs, ranks_named("pipeline:3", mesh));
  std::string text = chrome_trace(run, mesh);
  const std::string between = "},{";
  for (size_t at = 0; (at = text.find(between, at)) != text.npos; at += 3) text.replace(at, between.size(), "},\n{");
  check_snapshot("plan/world_trace.json", text);
}

}  // namespace trireme::test
