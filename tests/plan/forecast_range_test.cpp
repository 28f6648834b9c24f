// Ranges of forecasts, the verdict on memory, and what describes runs of other systems.
#include "trainer/plan/forecast_range.h"

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/forecast.h"
#include "trainer/plan/kernel_time.h"
#include "trainer/plan/place.h"
#include "trainer/plan/search.h"
#include "trainer/plan/step_costs.h"

namespace trireme {
namespace {

using Catch::Matchers::Contains;

Config model_of_7b() {
  Config c;
  c.model.layers = 32;
  c.model.hidden_size = 4096;
  c.model.heads = 32;
  c.model.vocab_size = 50368;
  c.training.steps = 10;
  c.training.sequence_length = 2048;
  c.training.global_batch_size = 128;
  c.training.micro_batch_size = 4;
  c.training.precision = Arithmetic::kBf16;
  c.parallel.data = 8;
  c.parallel.zero_stage = 3;
  c.data.train = {"tokens"};
  return c;
}

ClusterConfig cluster_with(const std::string& stack, int64_t devices = 8, const std::string& type = "H100") {
  ClusterConfig c;
  c.device.type = type;
  c.devices_per_node = std::min<int64_t>(devices, 8);
  c.nodes = devices / c.devices_per_node;
  c.software.stack = stack;
  return resolve_cluster(c);
}

ForecastRange range_with(Config c, const ClusterConfig& cluster) {
  c.parallel.data = cluster.devices();
  return forecast_range(resolve(c), cluster);
}

}  // namespace

TEST_CASE("range: runs like published ones have the error of their system, others a wider one that names the size") {
  const ClusterConfig foundry = cluster_with("llm-foundry");
  const ForecastRange usual = range_with(model_of_7b(), foundry);
  CHECK(usual.error < 0.1);
  CHECK_THAT(usual.basis, Contains("of the 88 published runs of llm-foundry"));

  Config large = model_of_7b();
  large.model.hidden_size = 32768;
  CHECK(range_with(large, foundry).error == kErrorBeyond);
  CHECK_THAT(range_with(large, foundry).basis, Contains("none of the 88 published runs of llm-foundry has nearly this hidden size"));

  Config small = model_of_7b();
  small.model.hidden_size = 256;
  CHECK(range_with(small, foundry).error == kErrorBeyond);

  Config length = model_of_7b();
  length.training.sequence_length = 262144;
  length.training.micro_batch_size = 1;
  CHECK_THAT(range_with(length, foundry).basis, Contains("nearly this sequence length"));

  Config batch = model_of_7b();
  batch.training.micro_batch_size = 128;
  batch.training.global_batch_size = 1024;
  CHECK_THAT(range_with(batch, foundry).basis, Contains("nearly this number of tokens in a micro-batch"));

  Config devices = model_of_7b();
  devices.training.global_batch_size = 8192;
  devices.training.micro_batch_size = 4;
  CHECK(range_with(devices, cluster_with("llm-foundry", 1024)).error < 0.1);  // a factor of two beyond 512
  CHECK_THAT(range_with(devices, cluster_with("llm-foundry", 2048)).basis, Contains("nearly this number of devices"));
  CHECK(range_with(model_of_7b(), cluster_with("llama-3")).error == kErrorUnseen);
}

TEST_CASE("range: beyond the published runs of a system it is never narrower than within") {
  for (const SeenRuns& seen : seen_runs()) {
    CAPTURE(seen.stack);
    Config usual = model_of_7b();
    usual.training.micro_batch_size = 1;
    usual.training.global_batch_size = static_cast<int64_t>(seen.span.least.devices);
    const ForecastRange within = range_with(usual, cluster_with(seen.stack, static_cast<int>(seen.span.least.devices)));
    Config large = usual;
    large.model.hidden_size = 131072;
    const ForecastRange beyond = range_with(large, cluster_with(seen.stack, static_cast<int>(seen.span.least.devices)));
    CHECK_THAT(beyond.basis, Contains("has nearly this hidden size"));
    CHECK(beyond.error >= within.error);
    CHECK(beyond.error == std::max(kErrorBeyond, seen.error));  // of deepspeed-zero3 and pytorch-fsdp the latter
  }
}

TEST_CASE("range: of Trireme, measured machines have their error, and others that of unseen systems") {
  CHECK(range_with(model_of_7b(), cluster_with("trireme", 1)).error < 0.11);
  for (const ClusterConfig& cluster : {cluster_with("trireme", 8), cluster_with("trireme", 1, "A100"), cluster_with("trireme", 1, "B200")}) {
    const ForecastRange range = range_with(model_of_7b(), cluster);
    CHECK(range.error == kErrorUnseen);
    CHECK_THAT(range.basis, Contains(cluster.devices() > 1 ? "on several GPUs" : concat("on a ", cluster.device.type)));
  }
  Config tiny = model_of_7b();
  tiny.model.hidden_size = 64;
  tiny.model.heads = 4;
  CHECK(range_with(tiny, cluster_with("trireme", 1)).error == kErrorUnseen);  // a step whose kernels wait for their launches
  Config odd = model_of_7b();
  odd.model.ffn_size = 5461;
  CHECK(range_with(odd, cluster_with("trireme", 1)).error == kErrorUnseen);
  Config wide = model_of_7b();
  wide.training.precision = Arithmetic::kFp32;
  CHECK_THAT(range_with(wide, cluster_with("trireme", 1)).basis, Contains("in fp32"));
}

TEST_CASE("range: a figure of the device or a straggler that no measured run had makes it wide") {
  struct Figure {
    const char* key;
    Auto<double> DeviceConfig::*value;
  };
  const Figure figures[] = {{"device.memory_bandwidth", &DeviceConfig::memory_bandwidth},
                            {"device.peak_flops", &DeviceConfig::peak_flops},
                            {"device.peak_flops_fp32", &DeviceConfig::peak_flops_fp32},
                            {"device.gemm_efficiency", &DeviceConfig::gemm_efficiency},
                            {"device.gemm_half_depth", &DeviceConfig::gemm_half_depth},
                            {"device.multiprocessors", &DeviceConfig::multiprocessors},
                            {"device.attention_efficiency", &DeviceConfig::attention_efficiency},
                            {"device.attention_half_length", &DeviceConfig::attention_half_length},
                            {"device.kernel_seconds", &DeviceConfig::kernel_seconds}};
  const ClusterConfig foundry = cluster_with("llm-foundry"), own = cluster_with("trireme", 1);
  for (const Figure& figure : figures) {
    CAPTURE(figure.key);
    ClusterConfig other = foundry, one = own;
    for (ClusterConfig* cluster : {&other, &one}) cluster->device.*figure.value = 10 + 2 * *(cluster->device.*figure.value);
    CHECK(range_with(model_of_7b(), other).error == kErrorBeyond);
    CHECK_THAT(range_with(model_of_7b(), other).basis,
               Contains(concat("none of the 88 published runs of llm-foundry has nearly this ", figure.key, ";")));
    CHECK(range_with(model_of_7b(), one).error == kErrorUnseen);
    CHECK_THAT(range_with(model_of_7b(), one).basis, Contains(concat("no run of Trireme on a GPU with this ", figure.key, " is in the comparison")));
  }
  for (ClusterConfig cluster : {foundry, own}) {
    const ForecastRange usual = range_with(model_of_7b(), cluster);
    cluster.device.memory = 60e9;  // none of these is about time
    cluster.device.watts = 500;
    cluster.device.price_per_hour = 2;
    cluster.device.peak_flops = 1.005 * *cluster.device.peak_flops;
    CHECK(range_with(model_of_7b(), cluster).basis == usual.basis);
    cluster.device.elementwise_bandwidth = 2 * *cluster.device.memory_bandwidth;
    CHECK_THAT(range_with(model_of_7b(), cluster).basis, Contains("this device.elementwise_bandwidth"));
    cluster.device.elementwise_bandwidth.reset();
    cluster.software.straggler = 1.5;
    CHECK(range_with(model_of_7b(), cluster).error > 1.5 * usual.error);
    CHECK_THAT(range_with(model_of_7b(), cluster).basis, Contains("this software.straggler"));
  }
}

TEST_CASE("range: torchtitan's published runs are of GPUs with less memory bandwidth, too") {
  Config config = model_of_7b();
  config.training.sequence_length = 8192;
  config.training.micro_batch_size = 2;
  const auto basis = [&](double bandwidth) {
    ClusterConfig cluster = cluster_with("torchtitan");
    cluster.device.memory_bandwidth = bandwidth * *cluster.device.memory_bandwidth;
    return range_with(config, cluster).basis;
  };
  CHECK_THAT(basis(1), Contains("of the 28 published runs of torchtitan if"));
  for (const double seen : {2.4 / 3.35, 0.9}) CHECK(basis(seen) == basis(1));
  for (const double other : {0.6, 1.2}) CHECK_THAT(basis(other), Contains("nearly this device.memory_bandwidth"));
}

TEST_CASE("range: of a CPU, whose figures are measured, only a straggler makes it wide") {
  Config config = model_of_7b();
  config.training.precision = Arithmetic::kFp32;
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster.device.cores = cluster.devices_per_node = 2;
  cluster = resolve_cluster(cluster);
  const ForecastRange usual = range_with(config, cluster);
  cluster.device.peak_flops = 2 * *cluster.device.peak_flops;
  CHECK(range_with(config, cluster).basis == usual.basis);
  cluster.software.straggler = 2;
  CHECK(range_with(config, cluster).error == kErrorUnseen);
  CHECK_THAT(range_with(config, cluster).basis, Contains("no run of Trireme with this software.straggler is in the comparison"));
}

TEST_CASE("range: its ends are the step times of which the forecast errs by just so much") {
  const ForecastRange range{0.25, ""};
  CHECK(10 / range.low(10) - 1 == Approx(0.25));
  CHECK(10 / range.high(10) - 1 == Approx(-0.25));
  for (const SeenRuns& seen : seen_runs()) CHECK((seen.error > 0 && seen.error < 0.5));
  const Config config = resolve(model_of_7b());
  const ClusterConfig cluster = cluster_with("llm-foundry");
  const Forecast forecast = forecast_time(config, cluster);
  const ForecastRange of_run = forecast_range(config, cluster);
  CHECK(forecast.step_low == Approx(forecast.step_seconds / (1 + of_run.error)));
  CHECK(forecast.step_high == Approx(forecast.step_seconds / (1 - of_run.error)));
  CHECK(forecast.range_basis == of_run.basis);
}

TEST_CASE("memory: a peak within the margin is tight, and one beyond the device does not fit") {
  const auto verdict = [](double peak, double margin) {
    Forecast forecast;
    set_memory(forecast, {{.peak = 1}, {.peak = peak}}, 100, margin);
    return std::pair(forecast.fits, forecast.tight);
  };
  CHECK(verdict(92, 0.08) == std::pair(true, false));
  CHECK(verdict(92.1, 0.08) == std::pair(true, true));
  CHECK(verdict(100, 0.08) == std::pair(true, true));
  CHECK(verdict(100.1, 0.08) == std::pair(false, false));
  CHECK(verdict(100, 0) == std::pair(true, false));
}

TEST_CASE("other systems: parts of a sequence attend to the parts before them") {
  // The same tokens and the same attention: one sequence of 32,768 tokens on each of four ranks, or four ranks that share four sequences in turn.
  Config whole = model_of_7b();
  whole.parallel.data = 4;
  whole.parallel.zero_stage = 1;
  whole.training.sequence_length = 32768;
  whole.training.global_batch_size = 4;
  whole.training.micro_batch_size = 1;
  Config parts = whole;
  parts.training.sequence_length = 8192;
  parts.training.global_batch_size = 16;
  ClusterConfig cluster = cluster_with("megatron-2024", 4);
  const Forecast one = forecast_time(resolve(whole), cluster), alone = forecast_time(resolve(parts), cluster);
  cluster.software.context = 4;
  const Forecast shared = forecast_time(resolve(parts), cluster);
  CHECK(shared.parts.compute == Approx(one.parts.compute).epsilon(0.05));
  CHECK(alone.parts.compute < 0.9 * shared.parts.compute);
  CHECK(shared.mfu == Approx(one.mfu).epsilon(0.05));
  cluster.software.context = 3;
  CHECK_THROWS_WITH(forecast_time(resolve(parts), cluster), Contains("software.context=3"));
}

TEST_CASE("other systems: ring attention has its own kernels, and merges its parts through memory") {
  // A layer of 4 sequences of 32,768 tokens on four ranks, in seconds of one rank that has a quarter of each.
  Config config = model_of_7b();
  config.parallel.data = 4;
  config.parallel.zero_stage = 1;
  config.training.sequence_length = 8192;
  config.training.global_batch_size = 16;
  config.training.micro_batch_size = 4;
  config = resolve(config);
  ClusterConfig cluster = cluster_with("torchtitan", 4);
  const auto block = [&] { return model_seconds(config, cluster).mean_block[0]; };
  const PartSeconds alone = block();
  cluster.software.context = 4;
  const PartSeconds ring = block();
  const double elements = 4.0 * 8192 * static_cast<double>(config.model.hidden_size);
  const Stack stack = stack_of("torchtitan");
  const auto attention = [&](double rate) {
    Stack other = stack;
    other.attention_rate = rate;
    return attention_seconds(4, 8192, static_cast<double>(config.model.heads), 128, 2, other, cluster);
  };
  const AttentionSeconds usual = attention(stack.attention_rate), parts = attention(stack.ring_attention_rate);
  // Four ranks of one node gather keys and values faster than they compute, so that only work is added: FlashAttention-2 for as many pairs as four
  // whole parts have, and 3 x 40.5 or 58.5 bytes per element.
  CHECK(ring.forward - alone.forward == Approx(4 * parts.forward - usual.forward + elementwise_seconds(3 * 40.5 * elements, 1, cluster)));
  CHECK(ring.input_gradient - alone.input_gradient ==
        Approx(4 * parts.backward - usual.backward + elementwise_seconds(3 * 58.5 * elements, 1, cluster)));
  // Keys and values of all heads come over a network whose time is that of the bytes: all but the first part's attention waits for them.
  config.model.kv_heads = 8;
  cluster.devices_per_node = 1;
  cluster.nodes = 4;
  cluster.network.bandwidth = 1e9;
  cluster = resolve_cluster(cluster);
  const double bytes = 2 * 2 * elements;  // of keys and values of one rank, in 16 bits
  const PartSeconds slow = block();
  CHECK(slow.forward > 3 * bytes / 1e9);
  CHECK(slow.forward < 1.1 * 3 * bytes / 1e9 + 3 * parts.forward + alone.forward);
}

TEST_CASE("other systems: fp8 is for the products of the blocks, and Trireme has none") {
  const Config config = resolve(model_of_7b());
  ClusterConfig cluster = cluster_with("torchtitan");
  const ModelSeconds plain = model_seconds(config, cluster);
  cluster.software.fp8 = "tensorwise";
  const ModelSeconds fp8 = model_seconds(config, cluster);
  CHECK(fp8.head().seconds[0].forward == plain.head().seconds[0].forward);
  CHECK(fp8.mean_block[0].forward < 0.8 * plain.mean_block[0].forward);
  CHECK(fp8.mean_block[0].forward > 0.5 * plain.mean_block[0].forward);
  cluster.software.stack = "trireme";
  CHECK_THROWS_WITH(check_against_cluster(config, cluster), Contains("software.fp8"));
}

TEST_CASE("other systems: zero-bubble schedules are searched for, and wait for no other rank") {
  Config c = model_of_7b();
  c.parallel.data = 1;
  c.parallel.zero_stage = 0;
  c.parallel.pipeline = 8;
  c.model.vocab_size = 1024;  // stages of equal cost
  const auto with = [&](const char* schedule, const char* stack) {
    c.parallel.schedule = schedule;
    return forecast_time(resolve(c), cluster_with(stack));
  };
  const Forecast searched = with("zb_h2", "zero-bubble"), by_hand = with("zb_h2", "megatron-2021");
  CHECK(searched.parts.compute == Approx(by_hand.parts.compute).epsilon(1e-9));  // of the same products and kernels
  CHECK(searched.parts.bubble < 0.02 * searched.step_seconds);
  CHECK(by_hand.parts.bubble > 0.05 * by_hand.step_seconds);
  CHECK(with("1f1b", "zero-bubble").parts.bubble == Approx(with("1f1b", "megatron-2021").parts.bubble));
}

TEST_CASE("a search with another system's zero-bubble schedules prunes nothing that is better") {
  Config c = model_of_7b();
  c.training.global_batch_size = 32;
  const ClusterConfig cluster = cluster_with("zero-bubble", 8, "A100");
  const SearchResult pruned = search_layouts(c, cluster, {}, {.keep = 5}), whole = search_layouts(c, cluster, {}, {.keep = 5, .prune = false});
  REQUIRE(!whole.layouts.empty());
  for (size_t i = 0; i < 5; ++i) CHECK(pruned.layouts.at(i).layout == whole.layouts.at(i).layout);
}

}  // namespace trireme
