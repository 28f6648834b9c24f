// `trireme bench` on a GPU: the GPU's kernels support every call that it times.
#include <cmath>
#include <map>

#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "trainer/bench/kernels.h"
#include "trainer/bench/step.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"

namespace trireme::test {
namespace {

constexpr const char* kTiny = R"(model: {layers: 2, hidden_size: 32, heads: 2, kv_heads: 1, ffn_size: 40, vocab_size: 259, tied_embeddings: false}
training: {steps: 1, sequence_length: 9, micro_batch_size: 2, global_batch_size: 4}
data: {train: [none]}
)";

Config tiny(const std::string& precision, const std::string& set = "model.ffn_size=40") {
  return resolve(parse_config(kTiny, "tiny", {"training.precision=" + precision, "run.device=cuda", set}));
}

void check_all_positive(const nlohmann::ordered_json& rows) {
  REQUIRE_FALSE(rows.empty());
  for (const auto& row : rows)
    for (const auto& [key, value] : row.items()) {
      INFO(row.dump());
      if (value.is_number()) CHECK(value.get<double>() > 0);
    }
}

}  // namespace

TEST_CASE("bench on a GPU: every kernel") {
  Arena arena(testing::test_gpu());
  const Context ctx{Device::kCuda, &arena, 1, &testing::test_gpu()};
  for (const char* precision : {"fp32", "bf16", "fp16"}) {
    bench::KernelOptions options;
    options.tokens = 33;
    options.square = 16;
    options.sequences = {5, 40};
    options.head_sizes = {16, 32};
    options.working_set = 1;
    options.effort = {.batch_seconds = 1e-6, .seconds = 1e-6, .world = nullptr};
    const auto result = bench::bench_kernels(ctx, tiny(precision), options);
    check_all_positive(result["gemm"]);
    check_all_positive(result["attention"]);
    check_all_positive(result["bandwidth"]);
    CHECK(result["attention"].size() == 4);
    CHECK(result["bandwidth"].size() == 24);
  }
}

TEST_CASE("bench on a GPU: a training step") {
  Arena arena(testing::test_gpu());
  Context ctx{Device::kCuda, &arena, 1, &testing::test_gpu()};
  SelfCommunicator world("world");
  bench::StepOptions options;
  options.steps = 2;
  options.warmup = 2;
  options.effort = {.batch_seconds = 1e-6, .seconds = 1e-6, .world = nullptr};
  const auto result = bench::bench_step(ctx, world, tiny("bf16", "model.ffn_size=41"), options);
  CHECK(result["model_tflops"].get<double>() > 0);
  CHECK(result["share_of_gemm_ceiling"].get<double>() > 0);
  CHECK(result["cudnn_attention"].is_null());
  CHECK_FALSE(result["environment"]["libraries"].contains("attention"));
  double seconds = 0;
  std::map<std::string, double> phases;
  for (const auto& row : result["phases"]) seconds += phases[row["phase"]] = row["seconds"];
  CHECK(phases.size() == 10);
  for (const char* phase : {"forward, embedding", "forward, blocks", "forward, head", "backward, embedding", "backward, blocks", "backward, head"}) {
    INFO(phase);
    CHECK(phases.at(phase) > 0);
  }
  CHECK(seconds >= 0.999 * result["step_seconds"]["median"].get<double>());  // more if the passes were slower than the steps
  // The input of `down` is odd: its product and both gradients in each of two layers and two micro-batches. The vocabulary of 259 is padded.
  CHECK(result["plain_products"]["per_step"] == 12);
  CHECK(result["plain_products"]["shapes"].size() == 3);
  CHECK_THAT(bench::step_text(result), Catch::Matchers::Contains("warning: cuBLASLt has no kernel for 3 shapes"));
  CHECK(result["system_allocations"] == 0);  // all memory is allocated before the first step
  CHECK(result["loss"]["first"].get<double>() == Approx(std::log(259.0)).epsilon(0.02));
  CHECK_FALSE(bench::step_text(result).empty());
}

}  // namespace trireme::test
