// `trireme bench`: its figures are consistent; their values depend on the machine and its load.
#include <cmath>
#include <map>
#include <set>
#include <thread>

#include "tests/e2e/harness.h"
#include "tests/support/catch.h"

namespace trireme::test {
namespace {

using nlohmann::json;

/// Runs a command that prints one JSON object, and checks that it leaves no files behind.
json bench(const TemporaryDirectory& directory, const Arguments& arguments) {
  const auto before = directory.listing();
  const Outcome outcome = run(directory, Arguments{"bench"} + arguments + Arguments{"--json"});
  INFO(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(directory.changes_since(before) == "");
  INFO(outcome.out);
  json result = json::parse(outcome.out, nullptr, false);
  REQUIRE(result.is_object());
  return result;
}

void check_positive(const json& row, const std::set<std::string>& keys) {
  for (const std::string& key : keys) {
    INFO(key << " in " << row.dump());
    REQUIRE(row.contains(key));
    REQUIRE(row[key].is_number());
    CHECK(std::isfinite(row[key].get<double>()));
    CHECK(row[key].get<double>() > 0);
  }
}

std::set<std::string> names(const json& rows, const std::string& key) {
  std::set<std::string> found;
  for (const json& row : rows) found.insert(row.at(key).get<std::string>());
  return found;
}

const Arguments kTinyModel = sets({"model.hidden_size=24", "model.heads=3", "model.kv_heads=3", "model.ffn_size=40", "model.vocab_size=259"});
const Arguments kTinyKernels = {"kernels", "--device",    "cpu",  "--seconds",    "0.001", "--tokens",      "33", "--square",
                                "32",      "--sequences", "7,16", "--head-sizes", "8,6",   "--working-set", "1"};
const Arguments kQuick = {"--device", "cpu", "--seconds", "0.001"};

void check_kernels(const json& result) {
  CHECK(names(result["gemm"], "product") == std::set<std::string>{"square", "qkv", "out", "up", "down", "head"});
  double highest = 0;
  for (const json& row : result["gemm"]) {
    const std::set<std::string> rates{"forward_tflops", "backward_input_tflops", "backward_weight_tflops"};
    check_positive(row, rates);
    for (const std::string& rate : rates) highest = std::max(highest, row[rate].get<double>());
  }
  CHECK(result["gemm_ceiling_tflops"] == highest);
  CHECK(result["attention"].size() == 4);
  for (const json& row : result["attention"]) {
    check_positive(row, {"forward_tflops", "backward_tflops", "forward_backward_tflops"});
    CHECK(row["heads"] == 24 / row["head_size"].get<int>());
    CHECK(row["batch"] == 33 / row["sequence"].get<int>());
  }
  const std::set<std::string> kernels = names(result["bandwidth"], "kernel");
  for (const char* kernel : {"add", "rmsnorm_forward", "add_rmsnorm_forward", "rmsnorm_backward", "layernorm_backward", "swiglu_forward",
                             "swiglu_backward", "gelu_forward", "gelu_erf_forward", "rope_forward", "cross_entropy_sums", "cross_entropy_backward",
                             "embedding_forward", "embedding_backward", "adamw_step", "sum_of_squares"}) {
    INFO(kernel);
    CHECK(kernels.count(kernel) == 1);
  }
  const double copy = result["copy_gb_per_second"];
  CHECK(copy > 0);
  for (const json& row : result["bandwidth"]) {
    check_positive(row, {"microseconds", "bytes", "gb_per_second", "share_of_copy"});
    CHECK(row["gb_per_second"].get<double>() == Approx(row["bytes"].get<double>() / row["microseconds"].get<double>() / 1e3));
    CHECK(row["share_of_copy"].get<double>() == Approx(row["gb_per_second"].get<double>() / copy));
  }
}

}  // namespace

TEST_CASE("bench kernels: every kernel in every precision") {
  TemporaryDirectory directory;
  for (const char* precision : {"fp32", "bf16"}) {
    const json result = bench(directory, kTinyKernels + kTinyModel + Arguments{"--precision", precision});
    CHECK(result["precision"] == precision);
    CHECK(result["environment"]["gpu"].is_null());
    check_kernels(result);
    for (const json& row : result["bandwidth"])
      if (row["kernel"] == "add") CHECK(row["bytes"] == 3 * 33 * 24 * (result["precision"] == "fp32" ? 4 : 2));
  }
}

TEST_CASE("bench kernels: the shapes of a configuration, and only the selected kernels") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  const json result = bench(directory, {"kernels", "run.yaml", "--only", "gemm", "--device", "cpu", "--seconds", "0.001", "--square", "8"});
  CHECK_FALSE(result.contains("attention"));
  CHECK_FALSE(result.contains("bandwidth"));
  for (const json& row : result["gemm"]) {
    if (row["product"] == "qkv") CHECK(row["outputs"] == (4 + 2 * 2) * 4);
    if (row["product"] == "up") CHECK(row["outputs"] == 2 * 32);
    if (row["product"] != "square") CHECK(row["rows"] == 16);
  }
  const Outcome text = run(directory, {"bench", "kernels", "run.yaml", "--only", "gemm", "--device", "cpu", "--seconds", "0.001", "--square", "8"});
  CHECK(text.code == 0);
  CHECK(text.out.find("matrix products, TFLOP/s") != std::string::npos);
  CHECK(text.out.find("down") != std::string::npos);
}

TEST_CASE("bench step: consistent figures, on one rank and on several") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);  // no data is needed: the tokens are random
  for (const Arguments& ranks : {layout(1, 1, 1, 0), layout(2, 2, 2, 3)}) {
    const json result = bench(directory, Arguments{"step", "run.yaml", "--steps", "2", "--warmup", "2"} + kQuick + ranks);
    check_positive(result, {"parameters", "tokens_per_step", "model_tflops", "gemm_ceiling_tflops", "share_of_gemm_ceiling"});
    CHECK(result["tokens_per_step"] == 8 * 16);
    CHECK(result["mfu"].is_null());
    const double seconds = result["step_seconds"]["median"], rate = result["tokens_per_second"]["median"];
    CHECK(rate == Approx(128 / seconds));
    CHECK(result["tokens_per_second"]["low"].get<double>() == Approx(128 / result["step_seconds"]["high"].get<double>()));
    CHECK(result["tokens_per_second"]["high"].get<double>() == Approx(128 / result["step_seconds"]["low"].get<double>()));
    CHECK(result["step_seconds"]["low"] <= seconds);
    CHECK(result["step_seconds"]["high"] >= seconds);
    CHECK(result["step_seconds"]["mean"].get<double>() == Approx(seconds));  // mean of two steps
    CHECK(result["share_of_gemm_ceiling"].get<double>() ==
          Approx(result["model_tflops"].get<double>() / result["gemm_ceiling_tflops"].get<double>()));
    CHECK(result["system_allocations"] == 0);
    CHECK(result["loss"]["first"].get<double>() == Approx(std::log(256.0)).epsilon(0.02));  // initial weights predict uniformly
    CHECK(result["phases"].size() == 10);
    for (const json& phase : result["phases"]) CHECK(phase["seconds"].get<double>() >= 0);
    CHECK(result["phases"][1]["seconds"].get<double>() > 0);
    check_positive(result["memory_bytes"], {"parameters", "gradients", "optimizer", "activations", "peak", "arena"});
    const json& resident = result["resident_bytes"];
    const int world = ranks == layout(1, 1, 1, 0) ? 1 : 8;
    if (!resident.is_null()) check_positive(resident, {"before", "peak", "beyond"});
    // Each figure is a separate maximum over ranks.
    if (!resident.is_null() && world == 1)
      CHECK(resident["peak"].get<int64_t>() >= resident["before"].get<int64_t>() + resident["beyond"].get<int64_t>());
    CHECK(result["environment"]["world_size"] == world);
  }
}

TEST_CASE("bench step --operations: every operation of a forward and backward, with its time and rate") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  CHECK_FALSE(bench(directory, Arguments{"step", "run.yaml", "--steps", "1", "--warmup", "1"} + kQuick + layout(1, 1, 1, 0)).contains("operations"));
  for (const Arguments& ranks : {layout(1, 1, 1, 0), layout(2, 1, 1, 0)}) {
    const json rows = bench(directory, Arguments{"step", "run.yaml", "--operations", "--steps", "1", "--warmup", "1"} + kQuick + ranks)["operations"];
    std::map<std::string, int64_t> products;  // calls by layer
    double share = 0, last = 1e9;
    for (const json& row : rows) {
      check_positive(row, {"calls", "seconds", "share"});
      share += row["share"].get<double>();
      CHECK(row["seconds"].get<double>() <= last);
      last = row["seconds"];
      const bool product = row["operation"].get<std::string>().starts_with("linear_");
      if (product) products[row["layer"]] += row["calls"].get<int64_t>();
      CHECK((row["tflops"].is_null() != row["gb_per_second"].is_null()));
      if (product) check_positive(row, {"tflops", "of_limit"});
    }
    CHECK(share == Approx(1));
    CHECK(names(rows, "operation").contains("attention_backward"));
    // Forward and both gradients, for each layer and micro-batch.
    CHECK(products.at("qkv") == products.at("down"));
    CHECK(products.at("qkv") % 3 == 0);
    CHECK(products.size() == 5);
  }
}

TEST_CASE("bench comm: every operation at every size") {
  TemporaryDirectory directory;
  const json result = bench(directory, Arguments{"comm", "--ranks", "3", "--sizes", "100,40000"} + kQuick);
  REQUIRE(result["comm"].size() == 12);
  CHECK(names(result["comm"], "operation") ==
        std::set<std::string>{"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "all_to_all_v", "send_receive"});
  for (const json& row : result["comm"]) {
    check_positive(row, {"bytes", "microseconds", "algorithm_gb_per_second", "bus_gb_per_second"});
    CHECK(row["bytes"].get<int>() % 12 == 0);  // whole 4-byte elements on each of three ranks
    const double share = row["operation"] == "send_receive" ? 1 : row["operation"] == "all_reduce" ? 4.0 / 3 : 2.0 / 3;
    CHECK(row["bus_gb_per_second"].get<double>() == Approx(share * row["algorithm_gb_per_second"].get<double>()));
  }
  CHECK(result["environment"]["world_size"] == 3);
}

TEST_CASE("bench comm --cluster: fitted ranges are added to a cluster file that plan reads") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  const std::string sizes = "1024,2048,4096,65536,131072,262144";
  const Arguments comm = Arguments{"bench", "comm", "--ranks", "2", "--sizes", sizes, "--rounds", "2", "--json", "--cluster"};
  write_file(directory / "machine.yaml", "device: {type: cpu, memory_bandwidth: 1.25e10, cores: 2}\ndevices_per_node: 2\n");
  for (const char* file : {"machine.yaml", "new.yaml"}) {
    const json result = json::parse(must(directory, comm + Arguments{file} + kQuick).out);
    CHECK(names(result["fit"], "operation") == std::set<std::string>{"all_reduce", "all_gather", "reduce_scatter", "send_receive"});
    for (const json& range : result["fit"]) {
      CHECK(range["samples"].get<int>() >= 3);
      CHECK(range["to"] >= range["from"]);
      CHECK(range["bandwidth"].get<double>() > 0);
      CHECK(range["worst_error"].is_number());
    }
    for (const json& row : result["comm"]) CHECK(row["error"].is_null() == (row["operation"].get<std::string>().starts_with("all_to_all")));
    CHECK(read_file(directory / file).find("  all_reduce:\n    from: [1024") != std::string::npos);
    const json plan = json::parse(must(directory, Arguments{"plan", "run.yaml", "--cluster", file, "--json"} + layout(1, 1, 2, 1)).out);
    CHECK(plan["step_seconds"].get<double>() > 0);
  }
  CHECK(read_file(directory / "machine.yaml").find("memory_bandwidth: 1.25e+10") != std::string::npos);
  const auto before = directory.listing();
  check_error(run(directory, comm + Arguments{"run.yaml"} + kQuick), 64, "unknown key");  // no cluster file
  check_error(run(directory, Arguments{"bench", "comm", "--fit", "--sizes", "100,200"} + kQuick), 64, "at least 3 sizes");
  const std::string too_many = std::to_string(std::thread::hardware_concurrency() + 1);
  check_error(run(directory, Arguments{"bench", "comm", "--fit", "--ranks", too_many} + kQuick), 64, "how the kernel shares the cores");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("bench scale: strong and weak scaling beside the forecast, and ranks that share cores are in no fit") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  const Arguments larger = sets({"model.hidden_size=128", "model.heads=4", "model.ffn_size=512", "model.vocab_size=512",
                                 "training.sequence_length=128", "run.device=cpu", "training.global_batch_size=2"});
  const Arguments scale = Arguments{"bench", "scale", "run.yaml", "--steps", "1", "--warmup", "1", "--rounds", "1", "--json", "--svg", "scale.svg"};
  const json result = json::parse(must(directory, scale + layout(1, 1, 1, 0) + Arguments{"--ranks", "4", "--output", "scale.json"} + larger).out);
  CHECK(json::parse(read_file(directory / "scale.json")) == result);
  CHECK(read_file(directory / "scale.svg").starts_with("<svg"));
  const int64_t places = result["places"];
  for (const char* kind : {"strong", "weak"}) {
    const json& curve = result[kind];
    REQUIRE(curve["points"].size() == 3);
    int64_t ranks = 1, fitted = 0;
    for (const json& point : curve["points"]) {
      INFO(point.dump());
      CHECK(point["ranks"] == ranks);
      CHECK(point["shares_cores"] == (ranks > places));
      const bool possible = std::string(kind) == "weak" || ranks <= 2;  // sequences of the batch
      CHECK(point["left_out"].is_null() == possible);
      if (possible) {
        check_positive(point, {"step_seconds", "tokens_per_second", "speedup", "efficiency", "forecast_seconds", "forecast_ratio"});
        const double tokens = point["tokens_per_second"].get<double>() * point["step_seconds"].get<double>();
        CHECK(tokens == Approx(2 * 128 * (std::string(kind) == "weak" ? ranks : 1)));
        fitted += ranks <= places;
      }
      ranks *= 2;
    }
    CHECK(curve["fitted_points"] == fitted);
    CHECK(curve["serial_share"].is_null() == (fitted < 2));
  }
  // One rank of one thread is forecast on one core.
  const auto forecast = [&](size_t point) { return result["strong"]["points"][point]["forecast_seconds"].get<double>(); };
  CHECK(forecast(0) > 1.4 * forecast(1));
  const auto before = directory.listing();
  check_error(run(directory, {"bench", "scale", "none.yaml"}), 66, "none.yaml");
  check_error(run(directory, Arguments{"bench", "scale", "run.yaml", "--ranks", "1"} + layout(2, 1, 1, 0)), 64, "allowed integer from 2");
  check_error(run(directory, {"bench", "scale", "run.yaml", "--svg", "run.yaml"}), 64, "run.yaml");
  CHECK(directory.changes_since(before) == "");
}

TEST_CASE("bench: unsupported options are refused, and nothing is written") {
  TemporaryDirectory directory;
  write_file(directory / "run.yaml", kConfig);
  const auto before = directory.listing();
  const std::vector<std::pair<Arguments, int>> refused = {{{}, 64},
                                                          {{"stp", "run.yaml"}, 64},
                                                          {{"step"}, 64},
                                                          {{"step", "run.yaml", "--steps", "0"}, 64},
                                                          {{"step", "run.yaml", "--set", "model.heads=3"}, 64},
                                                          {{"step", "missing.yaml"}, 66},
                                                          {{"kernels", "--device", "gpu"}, 64},
                                                          {{"kernels", "--device", "cuda", "--precision", "fp64"}, 64},
                                                          {{"kernels", "--only", "gem"}, 64},
                                                          {{"kernels", "--sequences", "16,x"}, 64},
                                                          {{"kernels", "--tokens", "-1"}, 64},
                                                          {{"kernels", "--set", "model.hiden_size=8"}, 64},
                                                          {{"comm", "--ranks", "1"}, 64},
                                                          {{"comm", "--sizes", "0"}, 64},
                                                          {{"comm", "run.yaml"}, 64}};
  for (const auto& [arguments, code] : refused) {
    const Outcome outcome = run(directory, Arguments{"bench"} + arguments);
    INFO(json(arguments).dump() << ": " << outcome.err);
    CHECK(outcome.code == code);
    CHECK(outcome.out == "");
    CHECK(outcome.err != "");
  }
  CHECK(directory.changes_since(before) == "");
  const Outcome alone = run_under_mpirun(directory, 1, {"bench", "comm"});
  CHECK(alone.code == 64);
  CHECK(alone.err.find("needs at least two ranks") != std::string::npos);
}

}  // namespace trireme::test
