#include "trainer/plan/shape_rates.h"

#include <cmath>
#include <filesystem>

#include "tests/support/catch.h"
#include "tests/support/places.h"
#include "trainer/config/load.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/report.h"

namespace trireme {
namespace {

using Catch::Matchers::Contains;

Config llama(std::vector<std::string> sets) {
  const std::string text =
      "run: {device: cuda}\n"
      "model: {layers: 2, hidden_size: 2048, heads: 16, ffn_size: 5504, vocab_size: 32000}\n"
      "training: {steps: 10, sequence_length: 2048, global_batch_size: 16, micro_batch_size: 16, precision: bf16}\n"
      "data: {train: [tokens]}\n";
  const LoadedConfig loaded = parse_config(text, "shapes.yaml", sets);
  return resolve(loaded);
}

std::vector<std::string> warned(const std::vector<std::string>& sets, bool own = true) { return shape_warnings(llama(sets), own); }

ClusterConfig one(const std::string& type, const std::string& stack = "trireme") {
  ClusterConfig cluster;
  cluster.device.type = type;
  cluster.nodes = cluster.devices_per_node = 1;
  if (type == "cpu") cluster.device.cores = 2;
  cluster.software.stack = stack;
  return resolve_cluster(cluster);
}

double step_seconds(const std::vector<std::string>& sets, const ClusterConfig& cluster) { return forecast_time(llama(sets), cluster).step_seconds; }

}  // namespace

TEST_CASE("the alignment of a product is that of its least aligned rows") {
  CHECK(alignment_rate(2048, 5464, 2, false) == 1);
  CHECK(alignment_rate(2048, 5464, 2, true) == 1);
  for (const bool weight_gradient : {false, true}) {
    const auto rate = [&](int64_t inputs, int64_t outputs, int64_t bytes = 2) { return alignment_rate(inputs, outputs, bytes, weight_gradient); };
    CHECK(rate(5460, 2048) == rate(2048, 5460));
    CHECK(rate(5460, 2048) < 0.5);
    CHECK(rate(5462, 5460) == rate(2048, 5462));
    CHECK(rate(5461, 5460) == rate(2048, 5461));
    CHECK(rate(2048, 5461) < rate(2048, 5462));
    CHECK(rate(5460, 2048, 4) == 1);  // 4 elements of fp32 are 16 bytes
    CHECK(rate(5462, 2048, 4) == rate(5460, 2048, 2));
  }
  CHECK(alignment_rate(2048, 5461, 2, true) < alignment_rate(2048, 5461, 2, false) / 5);
}

// TFLOP/s of `bench kernels` on an H100: bench/shapes_nvidia-h100_2026-11-27.md, and the weight gradients of the same runs. Each is compared with the
// same product for ffn_size 5464.
TEST_CASE("rates by alignment are within a fifth of those of every measured product") {
  struct Product {
    int64_t inputs, outputs;
    double forward, input_gradient, weight_gradient;
  };
  const Product up{2048, 10928, 673.6, 658.4, 776.3}, down{5464, 2048, 691.0, 660.0, 605.2};
  const std::vector<std::pair<Product, Product>> measured = {{{5460, 2048, 229.6, 251.4, 184.4}, down},
                                                             {{2048, 10924, 281.5, 249.0, 202.7}, up},
                                                             {{5462, 2048, 230.8, 267.5, 223.6}, down},
                                                             {{2048, 10922, 280.7, 245.3, 215.8}, up},
                                                             {{5461, 2048, 126.2, 134.2, 15.93}, down}};
  for (const auto& [product, aligned] : measured) {
    CAPTURE(product.inputs, product.outputs);
    const double rate = alignment_rate(product.inputs, product.outputs, 2, false);
    CHECK(rate / (product.forward / aligned.forward) == Approx(1).margin(0.2));
    CHECK(rate / (product.input_gradient / aligned.input_gradient) == Approx(1).margin(0.2));
    CHECK(alignment_rate(product.inputs, product.outputs, 2, true) / (product.weight_gradient / aligned.weight_gradient) == Approx(1).margin(0.2));
  }
  CHECK(alignment_rate(2048, 10920, 2, false) == 1);  // measured: 654 and 726 forward and input gradient
}

TEST_CASE("the alignment of rows slows 16-bit products on GPUs only") {
  const ClusterConfig h100 = one("H100"), cpu = one("cpu");
  const std::string odd = "model.ffn_size=5461", even = "model.ffn_size=5464";
  CHECK(step_seconds({odd}, h100) > 2 * step_seconds({even}, h100));
  CHECK(step_seconds({odd, "training.precision=fp16"}, h100) > 2 * step_seconds({even, "training.precision=fp16"}, h100));
  CHECK(step_seconds({odd, "training.precision=fp32"}, h100) == Approx(step_seconds({even, "training.precision=fp32"}, h100)).epsilon(0.005));
  CHECK(step_seconds({odd, "run.device=cpu"}, cpu) == Approx(step_seconds({even, "run.device=cpu"}, cpu)).epsilon(0.005));
  CHECK(step_seconds({odd}, one("H100", "torchtitan")) > 2 * step_seconds({even}, one("H100", "torchtitan")));  // the same library
  // Each of two ranks has 2732 of 5464 columns.
  ClusterConfig two = h100;
  two.devices_per_node = 2;
  CHECK(step_seconds({even, "parallel.tensor=2"}, two) > 1.1 * step_seconds({"model.ffn_size=5472", "parallel.tensor=2"}, two));
  CHECK(step_seconds({"model.vocab_size=32001"}, h100) == Approx(step_seconds({}, h100)).epsilon(0.01));
}

TEST_CASE("all three products of both layers of an MLP are slowed by their own rows") {
  const ClusterConfig h100 = one("H100");
  constexpr double kRows = 16 * 2048, kHidden = 2048, kLayers = 2;
  const auto products = [&](int64_t ffn) {
    const double rate = alignment_rate(2048, ffn, 2, false), gradient_rate = alignment_rate(2048, ffn, 2, true);
    const auto seconds = [&](double m, double n, double k, double alignment) {
      return product_seconds(m, n, k, 2, stack_of("trireme"), h100, alignment);
    };
    const auto f = static_cast<double>(ffn);
    return kLayers * (seconds(kRows, f, kHidden, rate) + seconds(kRows, kHidden, f, rate) + seconds(f, kHidden, kRows, gradient_rate) +
                      seconds(kRows, kHidden, f, rate) + seconds(kRows, f, kHidden, rate) + seconds(kHidden, f, kRows, gradient_rate));
  };
  const auto step = [&](int64_t ffn) { return step_seconds({"model.architecture=gpt2", concat("model.ffn_size=", ffn)}, h100); };
  for (const int64_t ffn : {8191, 8190, 8188}) {
    CAPTURE(ffn);
    CHECK(step(ffn) - step(8192) == Approx(products(ffn) - products(8192)).epsilon(0.02));
  }
}

// Rates of bench/shapes_nvidia-h100_2026-11-27.md in TFLOP/s, at T 2048.
TEST_CASE("attention without tensor cores is forecast within a fifth of its measured rate") {
  const ClusterConfig h100 = one("H100");
  for (const auto& [head_size, forward, backward] : {std::tuple{48, 6.2, 5.8}, {72, 6.2, 4.8}, {80, 6.9, 5.3}, {100, 6.9, 5.5}, {112, 7.5, 5.9}}) {
    CAPTURE(head_size);
    const AttentionSeconds seconds = attention_seconds(2, 2048, 16, head_size, 2, stack_of("trireme"), h100);
    const double flops = 2.0 * 2 * 16 * 2048 * 2048 * head_size;
    CHECK(flops / seconds.forward / 1e12 == Approx(forward).epsilon(0.2));
    CHECK(2.5 * flops / seconds.backward / 1e12 == Approx(backward).epsilon(0.2));
  }
}

TEST_CASE("only Trireme's attention on GPUs has the rate without tensor cores, and not with cuDNN") {
  const auto forward = [](double head_size, int64_t element_bytes, const Stack& stack, const ClusterConfig& cluster) {
    return attention_seconds(2, 2048, 16, head_size, element_bytes, stack, cluster).forward;
  };
  const ClusterConfig h100 = one("H100");
  const Stack own = stack_of("trireme");
  Stack cudnn = own;
  cudnn.cudnn = true;
  CHECK(forward(80, 2, own, h100) > 20 * forward(96, 2, own, h100));
  CHECK(forward(80, 2, cudnn, h100) < forward(96, 2, own, h100));
  CHECK(forward(80, 2, stack_of("torchtitan"), h100) < forward(96, 2, stack_of("torchtitan"), h100));
  CHECK(forward(80, 2, own, one("cpu")) < forward(96, 2, own, one("cpu")));
  for (const int64_t head_size : {32, 64, 96, 128}) CHECK(has_fast_attention(head_size, 2));
  CHECK(forward(128, 4, own, h100) == Approx(forward(127, 2, own, h100) * 128 / 127));  // the same kernel in fp32
  CHECK(step_seconds({"model.head_size=80", "kernels.attention=cudnn"}, h100) < 2 * step_seconds({}, h100));
  CHECK(step_seconds({"model.head_size=80"}, h100) > 3 * step_seconds({}, h100));
}

TEST_CASE("each key that makes products or attention slow has a warning with the nearest good values") {
  CHECK(warned({}).empty());
  CHECK(warned({"model.ffn_size=5464"}).empty());
  CHECK(warned({"training.sequence_length=2047"}).empty());
  CHECK(warned({"model.vocab_size=32001"}).empty());  // stored with rows of padding
  CHECK(
      warned({"model.ffn_size=5461"}) ==
      std::vector<std::string>{"model.ffn_size=5461: rows of 5461 elements in bf16 are not a multiple of 16 bytes long; on an H100, matrix products "
                               "with such rows ran at 6 % of their rate; the nearest good values are 5456 and 5464"});
  CHECK_THAT(warned({"model.ffn_size=5460"}).at(0), Contains("ran at 34 % of their rate; the nearest good values are 5456 and 5464"));
  CHECK_THAT(warned({"model.ffn_size=5462", "training.precision=fp16"}).at(0), Contains("rows of 5462 elements in fp16"));
  CHECK_THAT(warned({"model.ffn_size=5"}).at(0), Contains("the nearest good value is 8"));
}

TEST_CASE("warnings count the columns of one tensor rank") {
  const std::vector<std::string> warnings = warned({"model.ffn_size=5464", "parallel.tensor=2"});
  REQUIRE(warnings.size() == 1);
  CHECK_THAT(warnings[0], Contains("model.ffn_size=5464 with parallel.tensor=2: rows of 2732 elements"));
  CHECK_THAT(warnings[0], Contains("the nearest good values are 5456 and 5472"));
  CHECK(warned({"model.ffn_size=5456", "parallel.tensor=2"}).empty());
  CHECK(warned({"model.ffn_size=5472", "parallel.tensor=2"}).empty());
  CHECK(warned({"model.kv_heads=1", "parallel.tensor=2"}).empty());
  CHECK(warned({"model.vocab_size=32001", "parallel.tensor=2"}).empty());
}

TEST_CASE("a hidden size is proposed that the number of heads divides") {
  const std::vector<std::string> warnings = warned({"model.hidden_size=1164", "model.heads=6", "model.ffn_size=5504", "kernels.attention=auto"});
  REQUIRE(warnings.size() == 2);  // the head size is 194
  CHECK_THAT(warnings[0], Contains("model.hidden_size=1164: rows of 1164 elements"));
  CHECK_THAT(warnings[0], Contains("the nearest good values are 1152 and 1176"));
  CHECK_THAT(warnings[1], Contains("model.head_size=194"));
  CHECK_THAT(warned({"model.hidden_size=2044", "model.head_size=128", "parallel.tensor=2"}).at(0),
             Contains("model.hidden_size=2044: rows of 2044 elements"));
  CHECK_THAT(warned({"model.hidden_size=2044", "model.head_size=128"}).at(0), Contains("the nearest good values are 2040 and 2048"));
}

TEST_CASE("head sizes without kernels for tensor cores are named, unless another library computes attention") {
  const auto head = [](int64_t size) { return warned({concat("model.head_size=", size)}); };
  for (const int64_t size : {32, 64, 96, 128}) CHECK(head(size).empty());
  CHECK_THAT(head(80).at(0), Contains("model.head_size=80: Trireme has no attention for tensor cores"));
  CHECK_THAT(head(80).at(0), Contains("the nearest good values are 64 and 96"));
  CHECK(head(80).size() == 1);
  CHECK_THAT(head(16).at(0), Contains("the nearest good value is 32"));
  CHECK_THAT(head(256).at(0), Contains("the nearest good value is 128"));
  CHECK(warned({"model.head_size=80", "kernels.attention=cudnn"}).empty());
  CHECK(warned({"model.head_size=80"}, false).empty());
  CHECK(warned({"model.head_size=80", "training.precision=fp32"}).empty());  // no head size has such a kernel in fp32
}

// In fp32 no rates were measured. TF32 products run on tensor cores, so their rows of 4 elements have 16 bytes; others run on fp32 units.
TEST_CASE("fp32 has warnings with TF32 only, for rows that are no multiple of 4 elements") {
  const auto tf32 = [](std::vector<std::string> sets) {
    sets.insert(sets.end(), {"training.precision=fp32", "kernels.tf32=true"});
    return warned(sets);
  };
  CHECK(warned({"model.ffn_size=5461", "training.precision=fp32"}).empty());
  CHECK(tf32({"model.ffn_size=5460"}).empty());
  CHECK_THAT(tf32({"model.ffn_size=5461"}).at(0), Contains("and TF32 was not measured; the nearest good values are 5460 and 5464"));
  // Queries, keys and values of all heads are one row: (3 + 2) x 66 elements, or (2 + 2) x 66.
  CHECK_THAT(tf32({"model.head_size=66", "model.heads=3", "model.kv_heads=1"}).at(0), Contains("model.head_size=66: rows of 330 elements"));
  CHECK_THAT(tf32({"model.head_size=66", "model.heads=3", "model.kv_heads=1"}).at(0), Contains("the nearest good values are 64 and 68"));
  CHECK(tf32({"model.head_size=66", "model.heads=2", "model.kv_heads=1"}).empty());
  // On one of two ranks (1 + 2) x 66 and 66 elements: each rank has the kv head.
  CHECK_THAT(tf32({"model.head_size=66", "model.heads=2", "model.kv_heads=1", "parallel.tensor=2"}).at(0), Contains("rows of 198 elements"));
}

TEST_CASE("no configuration of the repository has a warning") {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test::in_checkout("configs"))) {
    if (entry.path().extension() != ".yaml") continue;
    CAPTURE(entry.path());
    CHECK(shape_warnings(resolve(load_config(entry.path().string()))).empty());
    ++count;
  }
  CHECK(count >= 10);
}

TEST_CASE("plan prints the warnings for GPUs, and JSON has them as a list") {
  RankedLayout plan;
  plan.config = llama({"model.ffn_size=5460", "model.head_size=80"});
  plan.forecast.step_seconds = 1;
  plan.forecast.memory = {{.peak = 1e9}};
  plan.forecast.memory_limit = 80e9;
  const std::vector<std::string> warnings = shape_warnings(plan.config);
  REQUIRE(warnings.size() == 2);
  const ClusterConfig h100 = one("H100");
  for (const std::string& line : warnings) CHECK_THAT(plan_text(plan, h100, {}), Contains("\nwarning: " + line + "\n"));
  CHECK(plan_json(plan, h100, {})["warnings"] == nlohmann::json(warnings));
  CHECK(plan_json(plan, one("H100", "torchtitan"), {})["warnings"].size() == 1);
  CHECK(plan_json(plan, one("cpu"), {})["warnings"] == nlohmann::json::array());
  CHECK_THAT(plan_text(plan, one("cpu"), {}), !Contains("warning"));
}

}  // namespace trireme
