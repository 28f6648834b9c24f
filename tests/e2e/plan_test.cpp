// `trireme plan` as run by a user or a script.
#include <sys/stat.h>

#include <array>
#include <set>

#include "kernels/core/check.h"
#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

using nlohmann::json;

const char* const kCluster = "nodes: 2\ndevices_per_node: 4\ndevice: {type: H100, price_per_hour: 2.0, watts: 1000}\n";
/// Eight ranks, the size of that cluster.
const Arguments kEight = sets({"parallel.tensor=2", "parallel.pipeline=2", "parallel.data=2"});

void prepare(const TemporaryDirectory& directory) {
  write_file(directory / "run.yaml", kConfig);  // no data: only sizes are read
  write_file(directory / "cluster.yaml", kCluster);
}

Arguments plan(const Arguments& more) { return Arguments{"plan", "run.yaml"} + more; }
Arguments on_cluster(const Arguments& more = {}) { return plan(kEight + Arguments{"--cluster", "cluster.yaml"} + more); }
json answer(const TemporaryDirectory& directory, const Arguments& arguments) { return json::parse(must(directory, arguments).out); }

void check_forecast(const json& row) {
  INFO(row.dump());
  CHECK(row.at("step_seconds").get<double>() > 0);
  CHECK(row.at("tokens_per_second_per_gpu").get<double>() > 0);
  CHECK(row.at("mfu").get<double>() > 0);
  CHECK(row.at("mfu").get<double>() < 1);
  CHECK(row.at("mfu_full_attention") >= row.at("mfu"));
  CHECK(row.at("mfu_with_recomputation") >= row.at("mfu_full_attention"));
  CHECK(row.at("bubble").get<double>() >= 0);
  CHECK(row.at("fits").is_boolean());
  for (const json& peak : row.at("memory_bytes")) {
    CHECK(peak.is_number_integer());
    CHECK(row["fits"].get<bool>() <= (peak <= row.at("memory_limit_bytes")));
  }
  double sum = 0;
  for (const auto& [name, seconds] : row.at("parts").items()) sum += seconds.get<double>();
  CHECK(sum == Approx(row["step_seconds"].get<double>()).epsilon(1e-6));
}

}  // namespace

TEST_CASE("plan: plan.cluster selects the cluster, as for train, and --cluster overrides it") {
  const TemporaryDirectory directory;
  prepare(directory);
  const auto on = [&](const Arguments& more) { return answer(directory, plan(kEight + more + Arguments{"--json"})); };
  CHECK(on(sets({"plan.cluster=cluster.yaml"})) == on({"--cluster", "cluster.yaml"}));
  CHECK(on(sets({"plan.cluster=none.yaml"}) + Arguments{"--cluster", "cluster.yaml"}) == on({"--cluster", "cluster.yaml"}));
  check(run(directory, plan(kEight + sets({"plan.cluster=none.yaml"}))), 66, "none.yaml");
  check(run(directory, plan(kEight + sets({"run.ranks_per_gpu=2", "run.device=cuda"}))), 64, "run.ranks_per_gpu=2");
}

TEST_CASE("plan: memory by category and phase, and the allowance for the runtime") {
  const TemporaryDirectory directory;
  prepare(directory);
  const json row = answer(directory, on_cluster({"--json"}))["memory"][0];
  double most = 0;
  for (const char* phase : {"load", "forward", "backward", "optimizer", "save"}) {
    CAPTURE(phase);
    CHECK(row["phases"][phase]["peak"].get<double>() > 0);
    most = std::max(most, row["phases"][phase]["peak"].get<double>());
  }
  CHECK(most + row["runtime"].get<double>() == row["peak"].get<double>());
  double runtime = 0;
  for (const auto& [part, bytes] : row["runtime_parts"].items()) runtime += bytes.get<double>();
  CHECK(runtime == row["runtime"].get<double>());
  const std::string text = must(directory, on_cluster()).out;
  CHECK(text.find("peak by phase: load ") != std::string::npos);
  CHECK(text.find("NCCL communicators ") != std::string::npos);
}

TEST_CASE("plan --json prints the forecast of the configured layout, and writes no files") {
  const TemporaryDirectory directory;
  prepare(directory);
  const auto before = directory.listing();
  const json row = answer(directory, on_cluster({"--json", "--tokens", "1.0e9"}));
  check_forecast(row);
  CHECK(row["fits"] == true);
  CHECK(row["memory_bytes"].size() == 2);  // pipeline ranks
  CHECK(row["layouts"] == json::array());
  CHECK(row["layout"].get<std::string>().starts_with("tp2pp2dp2"));
  CHECK(row["cluster"]["devices"] == 8);
  // 8 sequences of 16 tokens per step on 8 devices.
  CHECK(row["tokens_per_second_per_gpu"].get<double>() * row["step_seconds"].get<double>() == Approx(8 * 16 / 8.0));
  const double hours = 1e9 / (8 * 16) * row["step_seconds"].get<double>() / 3600;
  CHECK(row["training"]["days"].get<double>() == Approx(hours / 24));
  CHECK(row["training"]["cost"].get<double>() == Approx(hours * 8 * 2.0));
  CHECK(row["training"]["kilowatt_hours"].get<double>() == Approx(hours * 8));
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("plan prints a step with each number of data ranks of an elastic job") {
  TemporaryDirectory directory;
  prepare_run(directory);
  const Arguments elastic = Arguments{"plan", "run.yaml", "--cluster", "H100"} + layout(1, 1, 4, 3) +
                            sets({"resilience.elastic=replicas", "resilience.minimum_replicas=2"});
  const nlohmann::json plan = nlohmann::json::parse(must(directory, elastic + Arguments{"--json"}).out);
  const nlohmann::json& steps = plan.at("elastic");
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].at("step_seconds") == plan.at("step_seconds"));
  for (size_t i = 0; i < 3; ++i) {
    CHECK(steps[i].at("data") == 4 - static_cast<int>(i));
    if (i == 0) continue;
    CHECK(steps[i].at("step_seconds") > steps[i - 1].at("step_seconds"));
    CHECK(steps[i].at("peak_bytes") > steps[i - 1].at("peak_bytes"));  // of larger shards
  }
  // The forecast of three data ranks is that of a job that starts with them, on devices whose speed does not depend on the number of ranks.
  const nlohmann::json three = nlohmann::json::parse(must(directory, elastic + sets({"parallel.data=3"}) + Arguments{"--json"}).out);
  CHECK(steps[1].at("step_seconds") == three.at("step_seconds"));
  CHECK(must(directory, elastic).out.find("resilience.elastic: the same global batch with fewer data ranks:\n") != std::string::npos);
}

TEST_CASE("plan prints whether the run fits, the step time and its parts") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Outcome people = must(directory, on_cluster({"--tokens", "1.0e9"}));
  for (const char* words : {"cluster: cluster.yaml", "8 x H100 (2 nodes of 4)", "pipeline rank 0", "pipeline rank 1", "fits: stage", "compute", "#",
                            "MFU", "causal half", "NVIDIA", "tokens/s per GPU", "tokens per day", "cost", "MWh"}) {
    INFO(people.out << " | " << words);
    CHECK(people.out.find(words) != std::string::npos);
  }
  // Two shares of idle time are printed, of different ranks.
  CHECK_THAT(people.out, Catch::Matchers::Contains("critical-path rank") && Catch::Matchers::Contains("mean over the pipeline ranks"));
  CHECK(people.err.empty());
}

TEST_CASE("plan of a run that does not fit prints by how much and on which stage, without an error") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments huge = sets({"model.hidden_size=8192", "model.heads=64", "model.kv_heads=8", "model.ffn_size=28672", "model.layers=80",
                               "model.vocab_size=128256", "training.precision=bf16"});
  const Outcome people = must(directory, on_cluster(huge));
  CHECK_THAT(people.out, Catch::Matchers::Contains("does not fit: ") && Catch::Matchers::Contains(" GB too much on stage "));
  const json row = answer(directory, on_cluster(huge + Arguments{"--json"}));
  check_forecast(row);
  CHECK(row["fits"] == false);
}

TEST_CASE("plan counts the chunks of logits of the cluster's devices, whatever run.device is here") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments large = sets({"model.vocab_size=32768", "training.sequence_length=2048", "training.micro_batch_size=2", "parallel.data=4"});
  const auto peak = [&](const Arguments& more) {
    return answer(directory, plan(large + more + Arguments{"--json", "--nodes", "auto"}))["memory_bytes"][0].get<int64_t>();
  };
  const Arguments gpu = {"--cluster", "H100"}, cpu = {"--cluster", "cpu"}, whole = sets({"training.logits_chunk=4096"});
  CHECK(peak(gpu) == peak(gpu + whole));
  CHECK(peak(gpu + sets({"run.device=cpu"})) == peak(gpu));
  CHECK(peak(gpu) > peak(gpu + sets({"training.logits_chunk=512"})));
  CHECK(peak(cpu) == peak(cpu + sets({"training.logits_chunk=512"})));  // 64 MiB in fp32
}

TEST_CASE("plan without a cluster prints the assumed one") {
  const TemporaryDirectory directory;
  prepare(directory);
  const json cpu = answer(directory, plan(sets({"run.device=cpu", "parallel.data=2"}) + Arguments{"--json"}));
  CHECK(cpu["cluster"]["device"] == "cpu");
  CHECK(cpu["cluster"]["devices"] == 2);
  CHECK_THAT(cpu["cluster"]["source"].get<std::string>(), Catch::Matchers::Contains("assumed"));
  const json gpus = answer(
      directory, plan(sets({"run.device=cuda", "parallel.tensor=4", "parallel.data=8", "training.global_batch_size=16"}) + Arguments{"--json"}));
  CHECK(gpus["cluster"]["device"] == "H100");
  CHECK(gpus["cluster"]["nodes"] == 4);
  CHECK(gpus["cluster"]["devices"] == 32);
  const json types = answer(directory, plan(kEight + Arguments{"--cluster", "B200", "--json"}));
  CHECK(types["cluster"]["device"] == "B200");
  CHECK(types["cluster"]["nodes"] == 1);
  CHECK(types["step_seconds"] < answer(directory, plan(kEight + Arguments{"--cluster", "A100", "--json"}))["step_seconds"]);
}

TEST_CASE("plan follows --nodes, and data: auto uses the remaining devices") {
  const TemporaryDirectory directory;
  prepare(directory);
  const json nodes = answer(directory, on_cluster({"--nodes", "auto", "--json"}));
  CHECK(nodes["cluster"]["nodes"] == 2);
  const json more =
      answer(directory, plan(sets({"parallel.tensor=2", "parallel.data=auto"}) + Arguments{"--cluster", "cluster.yaml", "--nodes", "1", "--json"}));
  CHECK(more["layout"].get<std::string>().starts_with("tp2dp2"));
  CHECK(more["cluster"]["devices"] == 4);
}

TEST_CASE("plan applies --cluster-set to built-in machines") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments built_in = plan(kEight + Arguments{"--cluster", "H100"}), cuda = plan(kEight + sets({"run.device=cuda"}));
  check(run(directory, built_in + Arguments{"--cluster-set", "nodes=2"}), 64, "has 16 devices: 2 nodes of 8");
  check(run(directory, cuda + Arguments{"--cluster-set", "nodes=2"}), 64, "has 16 devices: 2 nodes of 8");
  for (const Arguments& start : {built_in, cuda}) {
    const json small = answer(directory, start + Arguments{"--cluster-set", "devices_per_node=4", "--json"})["cluster"];
    CHECK(small["nodes"] == 2);
    CHECK(small["devices_per_node"] == 4);
    const json both = answer(directory, start + Arguments{"--cluster-set", "nodes=4", "--cluster-set", "devices_per_node=2", "--json"})["cluster"];
    CHECK(both["nodes"] == 4);
    CHECK(both["devices_per_node"] == 2);
  }
  check(run(directory, built_in + Arguments{"--cluster-set", "devices_per_node=16"}), 64, "do not fill nodes of 16");
  const Arguments cpu = plan(kEight + sets({"run.device=cpu"}));
  CHECK(answer(directory, cpu + Arguments{"--cluster-set", "nodes=2", "--json"})["cluster"]["devices_per_node"] == 4);
  check(run(directory, cpu + Arguments{"--cluster-set", "nodes=3"}), 64, "3 nodes of 8");
  check(run(directory, cpu + Arguments{"--cluster-set", "devices_per_node=2"}), 64, "devices_per_node");
}

TEST_CASE("plan --search reports the nearest layouts and advice if nothing fits the devices") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments search = plan(kEight + sets({"model.hidden_size=65536", "model.heads=64", "model.kv_heads=64", "model.layers=32"}) +
                                Arguments{"--cluster", "H100", "--nodes", "2", "--search"});
  const json row = answer(directory, search + Arguments{"--json"});
  check_forecast(row);
  CHECK(row["fits"] == false);
  CHECK(row["layouts"] == json::array());
  REQUIRE(!row["too_large"].empty());
  for (const json& layout : row["too_large"]) check_forecast(layout);
  CHECK(row["advice"].is_string());
  CHECK_THAT(must(directory, search).out, Catch::Matchers::Contains(row["advice"].get<std::string>()));
}

TEST_CASE("plan --search ranks layouts, and writes the best as a configuration with the same forecast") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments search = on_cluster({"--search"});
  const json found = answer(directory, search + Arguments{"--json", "--output", "best.yaml"});
  check_forecast(found);
  CHECK(found["layout"].get<std::string>().starts_with("tp2pp2dp2"));  // still the configuration's own
  REQUIRE(found["layouts"].size() > 3);
  double last = 0;
  for (const json& row : found["layouts"]) {
    check_forecast(row);
    CHECK(row["fits"] == true);
    CHECK(row["step_seconds"].get<double>() >= last);
    CHECK(row.at("reason").is_null() == (&row == &found["layouts"][0]));
    last = row["step_seconds"];
  }
  CHECK(found["layouts"][0]["step_seconds"] <= found["step_seconds"]);
  const json best = answer(directory, {"plan", "best.yaml", "--cluster", "cluster.yaml", "--json"});
  CHECK(best["layout"] == found["layouts"][0]["layout"]);
  CHECK(best["step_seconds"].get<double>() == Approx(found["layouts"][0]["step_seconds"].get<double>()));
  const Outcome people = must(directory, search);
  CHECK_THAT(people.out, Catch::Matchers::Contains(found["layouts"][0]["layout"].get<std::string>()) && Catch::Matchers::Contains("slower"));
  // The configured layout does not match the size of the cluster: the forecast is that of the best layout.
  const json other = answer(directory, search + Arguments{"--nodes", "1", "--json"});
  CHECK(other["layout"] == other["layouts"][0]["layout"]);
}

TEST_CASE("plan --nodes auto --search --json has an empty list of numbers of nodes if the model fits on none") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments search =
      plan(sets({"parallel.data=1"}) + Arguments{"--cluster", "cluster.yaml", "--cluster-set", "device.memory=1.0e6", "--nodes", "auto", "--search"});
  const json found = answer(directory, search + Arguments{"--json"});
  CHECK(found["layouts"] == json::array());
  CHECK(found.at("nodes") == json::array());
  CHECK(found.at("advice").is_string());
  CHECK_THAT(must(directory, search).out, !Catch::Matchers::Contains("numbers of nodes"));
}

TEST_CASE("plan says what the cluster file assumes of the software") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments other =
      on_cluster({"--cluster-set", "software.stack=torchtitan", "--cluster-set", "software.compiled=true"}) + sets({"training.precision=bf16"});
  CHECK_THAT(must(directory, other).out, Catch::Matchers::Contains("; with the kernels and overlap of torchtitan; software.compiled true\n"));
  const json software = answer(directory, other + Arguments{"--json"})["cluster"].at("software");
  CHECK(software == json({{"stack", "torchtitan"}, {"straggler", 1.0}, {"compiled", true}, {"fp8", "none"}, {"context", 1}}));
}

TEST_CASE("plan --search accepts the batches that it names") {
  const TemporaryDirectory directory;
  prepare(directory);
  const auto with = [&](const std::string& nodes, const std::string& data, const std::string& micro_batch, const std::string& batch) {
    return answer(directory,
                  plan(sets({"parallel.data=" + data, "training.micro_batch_size=" + micro_batch, "training.global_batch_size=" + batch}) +
                       Arguments{"--cluster", "cluster.yaml", "--cluster-set", "devices_per_node=3", "--nodes", nodes, "--search", "--json"}));
  };
  for (const auto& [nodes, data, micro_batch, batch] : {std::array{"2", "2", "4", "16"}, {"2", "auto", "1", "16"}, {"auto", "auto", "2", "16"}}) {
    CAPTURE(nodes, data, micro_batch, batch);
    const json found = with(nodes, data, micro_batch, batch);
    REQUIRE(!found["layouts"].empty());
    CHECK(!found["batches"].empty());
    for (const json& better : found["batches"]) {
      CAPTURE(better.dump());
      const json other = with(nodes, data, micro_batch, better.at("global_batch_size").dump());
      if (nodes != std::string("auto")) CHECK(other["layouts"][0]["layout"] == better.at("layout"));
    }
  }
}

TEST_CASE("plan --search explains its winner, and --nodes auto compares numbers of nodes") {
  const TemporaryDirectory directory;
  prepare(directory);
  // Ranks idle with ten sequences on four devices.
  const Arguments search =
      plan(sets({"parallel.data=1", "training.global_batch_size=10"}) + Arguments{"--cluster", "cluster.yaml", "--nodes", "auto", "--search"});
  const json found = answer(directory, search + Arguments{"--json"});
  REQUIRE(found["nodes"].size() > 1);
  int cheapest = 0;
  for (const json& row : found["nodes"]) {
    CHECK(row["devices"] == 4 * row["nodes"].get<int64_t>());
    CHECK(row["cost_per_billion_tokens"] == Approx(2 * row["device_hours_per_billion_tokens"].get<double>()));
    if (!row["cheapest"]) continue;
    ++cheapest;
    CHECK(row["nodes"] == found["cluster"]["nodes"]);
    CHECK(row["layout"] == found["layouts"][0]["layout"]);
  }
  CHECK(cheapest == 1);
  CHECK(found["nodes"][0]["fewest"] == true);
  REQUIRE(!found["batches"].empty());
  const std::string better = found["batches"][0].at("global_batch_size").dump();
  REQUIRE(found["why"].is_string());
  const std::string text = must(directory, search).out;
  CHECK_THAT(text, Catch::Matchers::Contains(found["why"].get<std::string>()) && Catch::Matchers::Contains("cheapest") &&
                       Catch::Matchers::Contains("ranks idle with this batch:\n  training.global_batch_size " + better + " gives "));
}

TEST_CASE("plan simulates every rank, traces selected ones and draws the pipeline") {
  const TemporaryDirectory directory;
  prepare(directory);
  const json row = answer(directory, on_cluster({"--json", "--simulate", "--trace", "trace.json", "--ranks", "pipeline:1", "--svg", "pipeline.svg"}));
  const json& world = row.at("world");
  CHECK(world["ranks"] == 8);
  CHECK(world["deadlock_free"] == true);
  CHECK(world["actions"] > 8 * 8);
  CHECK(world["step_seconds"].get<double>() > 0);
  CHECK(world["step_seconds"].get<double>() ==
        Approx(row["step_seconds"].get<double>()).epsilon(0.25));  // different model of overlap, without the update
  const json trace = json::parse(read_file(directory / "trace.json"));
  std::set<std::string> ranks;
  for (const json& event : trace.at("traceEvents"))
    if (event.at("name") == "process_name") ranks.insert(event.at("args").at("name").get<std::string>().substr(0, 7));
  CHECK(ranks == std::set<std::string>{"rank 1:", "rank 5:"});
  const std::string svg = read_file(directory / "pipeline.svg");
  CHECK(svg.starts_with("<svg"));
  CHECK_THAT(svg, Catch::Matchers::Contains("pipeline 1"));
  CHECK_THAT(must(directory, on_cluster({"--simulate"})).out,
             Catch::Matchers::Contains("simulated all 8 ranks") && Catch::Matchers::Contains("no deadlock"));
}

TEST_CASE("plan simulates, traces and draws a world without a pipeline") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments flat = plan(sets({"parallel.tensor=2", "parallel.data=4"}) + Arguments{"--cluster", "cluster.yaml"});
  const json row = answer(directory, flat + Arguments{"--json", "--simulate", "--trace", "trace.json", "--svg", "step.svg"});
  CHECK(row["world"]["ranks"] == 8);
  CHECK(row["world"]["step_seconds"].get<double>() == Approx(row["step_seconds"].get<double>()).epsilon(0.25));
  CHECK(json::parse(read_file(directory / "trace.json")).at("traceEvents").size() > 8);
  CHECK_THAT(read_file(directory / "step.svg"), Catch::Matchers::Contains("pipeline 0") && !Catch::Matchers::Contains("pipeline 1"));
}

TEST_CASE("in a pipeline without collectives the simulated step time equals the forecast without the update") {
  const TemporaryDirectory directory;
  prepare(directory);
  const json row = answer(directory, plan(sets({"parallel.pipeline=4", "model.tied_embeddings=false", "training.recompute=full"}) +
                                          Arguments{"--cluster", "H100", "--json", "--simulate"}));
  CHECK(row["bubble"].get<double>() > 0.1);
  const double forecast = row["step_seconds"].get<double>() - row["parts"]["optimizer"].get<double>() - row["parts"]["host"].get<double>();
  // A transfer of a lowered list waits for both ends; in the forecast it waits only for its data.
  CHECK(row["world"]["step_seconds"].get<double>() >= forecast * (1 - 1e-9));
  CHECK(row["world"]["step_seconds"].get<double>() <= forecast * 1.02);
}

TEST_CASE("plan --analyse adds the analysis of the forecast") {
  const TemporaryDirectory directory;
  prepare(directory);
  CHECK(answer(directory, on_cluster({"--json", "--analyse"})).at("analysis").is_object());
  CHECK_THAT(must(directory, on_cluster({"--analyse"})).out, Catch::Matchers::Contains("compute-optimal"));
}

TEST_CASE("plan overwrites only regular files that it has not read, and writes nothing if it refuses") {
  const TemporaryDirectory directory;
  prepare(directory);
  std::string epochs = kConfig;
  epochs.replace(epochs.find("  steps: 6"), 10, "  epochs: 1");
  write_file(directory / "epochs.yaml", epochs);
  write_file(directory / "mine.svg.tmp", "mine");
  REQUIRE(::mkfifo((directory / "pipe").c_str(), 0600) == 0);
  std::filesystem::create_directory(directory / "folder");
  std::filesystem::create_symlink("run.yaml", directory / "link.yaml");
  const auto before = directory.listing();
  const auto refuses = [&](const Arguments& arguments, int code, const std::string& words) {
    check(run(directory, on_cluster(arguments)), code, words);
    CHECK(directory.changes_since(before) == "");
  };
  for (const char* option : {"--svg", "--trace"}) {
    refuses({option, "pipe"}, 74, "cannot write pipe: it exists and is not a regular file");
    refuses({option, "folder"}, 74, "cannot write folder: it exists and is not a regular file");
    refuses({option, "none/here"}, 74, "cannot write none/here: no such directory: none");
    refuses({option, "./run.yaml"}, 64, concat(option, " ./run.yaml: "));
    refuses({option, "link.yaml"}, 64, concat(option, " link.yaml: "));
    refuses({option, "cluster.yaml"}, 64, concat(option, " cluster.yaml: "));
  }
  refuses({"--search", "--output", "run.yaml"}, 64, "--output run.yaml: ");
  refuses({"--svg", "same", "--trace", "folder/../same"}, 64, "same");
  refuses({"--svg", "a", "--trace", "a.tmp"}, 64, "a.tmp");
  refuses({"--svg", "mine.svg"}, 74, "mine.svg.tmp");
  refuses({"--svg", "a.svg", "--trace", "b.json", "--ranks", "99"}, 64, "\"99\": invalid ranks");
  check(run(directory, {"plan", "epochs.yaml", "--svg", "a.svg", "--analyse"}), 64, "give --tokens N");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("every command that reads a cluster refuses keys of it that the configuration excludes") {
  TemporaryDirectory directory;
  prepare_run(directory);
  struct Refused {
    std::string cluster;
    Arguments sets_of_run;
    const char* message;
  };
  const Refused cases[] = {
      {"software: {compiled: true}", {}, "software.compiled: describes a run of another system"},
      {"software: {fp8: rowwise}", {}, "software.fp8: describes a run of another system"},
      {"software: {context: 2}", {}, "software.context: describes a run of another system"},
      {"software: {stack: nanotron}", {}, "training.precision=fp32: software.stack nanotron has figures for bf16 and fp16 only"},
      {"software: {stack: torchtitan, fp8: tensorwise}", sets({"training.precision=bf16"}),
       "software.fp8=tensorwise: device type A100 has no matrix"},
      {"", sets({"training.precision=fp64"}), "training.precision=fp64: requires the CPU reference kernels"},
      {"", sets({"parallel.collectives=ring"}), "parallel.collectives=ring: GPUs "},
  };
  for (const Refused& one : cases) {
    CAPTURE(one.message);
    write_file(directory / "cluster.yaml", "devices_per_node: 1\ndevice: {type: A100}\n" + one.cluster + "\n");
    const Arguments with = one.sets_of_run + sets({"plan.cluster=cluster.yaml"});
    check_error(run(directory, Arguments{"plan", "run.yaml"} + with), 64, one.message);
    check_error(run(directory, Arguments{"plan", "run.yaml", "--search"} + with), 64, one.message);
    check_error(run(directory, Arguments{"plan", "run.yaml", "--search", "--nodes", "auto"} + with), 64, one.message);
    check_error(run(directory, Arguments{"train", "run.yaml"} + with), 64, one.message);
    check_error(run(directory, Arguments{"bench", "scale", "run.yaml", "--ranks", "1", "--steps", "1", "--warmup", "1", "--rounds", "1"} + with), 64,
                one.message);
  }
}

TEST_CASE("plan refuses meaningless option values") {
  const TemporaryDirectory directory;
  prepare(directory);
  for (const char* option : {"--cluster", "--nodes", "--trace", "--svg", "--tokens"}) {
    check(run(directory, on_cluster({option, ""})), 64, concat(option, ": "));
    check(run(directory, on_cluster({concat(option, "=")})), 64, option);
  }
  check(run(directory, on_cluster({"--search", "--output", ""})), 64, "--output: ");
  for (const char* tokens : {"nan", "-nan", "inf", "0", "0.5", "1e19", "many", "1e9x", "0x10"})
    check(run(directory, on_cluster({concat("--tokens=", tokens)})), 64,
          concat("--tokens: invalid token count \"", tokens, "\"; allowed: 1 to 1e18"));
  for (const char* nodes : {"0x8", "010", "few", "0", "-1", "2.0", "1048577", "99999999999999999999"})
    check(run(directory, on_cluster({concat("--nodes=", nodes)})), 64,
          concat("--nodes: invalid node count \"", nodes, "\"; allowed: 1 to 1048576, or auto"));
  check(run(directory, on_cluster({"--cluster-set", "nodes"})), 64, "e.g. --cluster-set nodes=2");
  check(run(directory, plan({"--cluster", "h100"})), 66, "h100: no such cluster file or built-in type; did you mean H100?");
  check(run(directory, plan({"--cluster", "none.yaml"})), 66, "built in: A100-40GB, A100, H100");
}

TEST_CASE("plan refuses impossible machines immediately") {
  const TemporaryDirectory directory;
  prepare(directory);
  const Arguments many = sets({"parallel.data=1024", "training.global_batch_size=1024", "run.device=cpu"});
  check(run(directory, plan(many)), 64, "1024 ranks");
  check(run(directory, plan(many)), 64, "give --cluster");
  check(run(directory, plan(sets({"parallel.data=1073741824", "training.global_batch_size=1073741824"}) + Arguments{"--cluster", "H100"})), 64,
        "4194304 devices");
  const Arguments cores = plan(sets({"parallel.pipeline=4"}) + Arguments{"--cluster", "cpu", "--simulate"});
  check(run(directory, cores + Arguments{"--cluster-set", "device.cores=2"}), 64, "device.cores");
  must(directory, cores + Arguments{"--cluster-set", "device.cores=4"});
}

TEST_CASE("plan --json prints valid JSON if the name of the cluster file is not UTF-8") {
  const TemporaryDirectory directory;
  prepare(directory);
  write_file(directory / "\xff.yaml", kCluster);
  CHECK(answer(directory, plan(kEight + Arguments{"--cluster", "\xff.yaml", "--json"}))["cluster"]["source"].get<std::string>().ends_with(".yaml"));
}

TEST_CASE("plan refuses invalid inputs") {
  const TemporaryDirectory directory;
  prepare(directory);
  check(run(directory, {"plan", "none.yaml"}), 66, "none.yaml: no such configuration file");
  check(run(directory, plan({"--cluster", "none.yaml"})), 66, "none.yaml: no such cluster file");
  write_file(directory / "bad.yaml", "network: {bandwith: 1.0e9}\n");
  check(run(directory, plan({"--cluster", "bad.yaml"})), 64, "bad.yaml:1:11 network.bandwith=1.0e9: unknown key; did you mean network.bandwidth?");
  check(run(directory, plan({"--cluster", "cluster.yaml"})), 64, "= 1 rank, but the cluster (cluster.yaml) has 8 devices");
  check(run(directory, on_cluster({"--cluster-set", "software.stack=megatrn"})), 64,
        "--cluster-set:software.stack software.stack=megatrn: not one of the choices; allowed trireme | ");
  check(run(directory, on_cluster({"--cluster-set", "nodes=0"})), 64, "--cluster-set:nodes nodes=0: out of range");
  check(run(directory, on_cluster({"--nodes", "few"})), 64, "--nodes");
  check(run(directory, on_cluster({"--output", "best.yaml"})), 64, "--search");
  check(run(directory, on_cluster({"--trace", "t.json", "--ranks", "world"})), 64, "world");
  check(run(directory, plan(sets({"parallel.tensor=3"}))), 64, "parallel.tensor");
  check(
      run(directory, plan(sets({"parallel.data=4", "security.aggregation.rule=median", "security.aggregation.byzantine=1"}) + Arguments{"--search"})),
      64, "security.aggregation.rule=median: --search compares numbers of data ranks");
  check(run(directory, plan(sets({"parallel.data=12", "training.global_batch_size=12"}) + Arguments{"--cluster", "H100"})), 64,
        "do not fill nodes of 8");
}

}  // namespace trireme::test
