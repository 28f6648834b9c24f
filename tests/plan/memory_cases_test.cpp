// The formula of memory against memory counted by running the ranks' lists on the meta device, over all options that move memory.
#include <cmath>
#include <cstdio>
#include <functional>

#include "tests/support/catch.h"
#include "trainer/layout/resolve.h"
#include "trainer/plan/forecast.h"
namespace trireme {
namespace {

ClusterConfig cpu() {
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster.device.cores = 2;
  return cluster;
}

Config base() {
  Config c;
  c.data.train = {"none"};
  c.run.device = DeviceType::kCpu;
  c.model.architecture = Architecture::kLlama;
  c.model.layers = 12;
  c.model.hidden_size = 256;
  c.model.heads = 8;
  c.model.kv_heads = 4;
  c.model.vocab_size = 1003;
  c.model.tied_embeddings = false;
  c.training.steps = 1;
  c.training.sequence_length = 64;
  c.training.micro_batch_size = 1;
  c.training.global_batch_size = 16;
  c.training.precision = Arithmetic::kBf16;
  return c;
}

using Change = std::function<void(Config&)>;

struct Case {
  const char* name;
  double percent;  ///< largest deviation
  std::vector<Change> changes;
};

Change pipeline(const char* schedule, int64_t ranks, int64_t virtual_stages = 0) {
  return [=](Config& c) {
    c.parallel.pipeline = ranks;
    c.parallel.schedule = schedule;
    if (virtual_stages > 0) c.parallel.virtual_stages = virtual_stages;
  };
}
Change zero(int64_t stage, int64_t data = 4, int64_t replicate = 1) {
  return [=](Config& c) {
    c.parallel.zero_stage = stage;
    c.parallel.data = data;
    c.parallel.replicate = replicate;
    c.training.global_batch_size *= data;
  };
}
Change prefetch(int64_t parts) {
  return [=](Config& c) { c.parallel.prefetch = parts; };
}
Change tensor(int64_t ranks, bool sequence_parallel) {
  return [=](Config& c) {
    c.parallel.tensor = ranks;
    c.parallel.sequence_parallel = sequence_parallel;
  };
}
Change precision(const char* name) {
  return [=](Config& c) { c.training.precision = OneOf<Arithmetic>(name); };
}
void tied(Config& c) { c.model.tied_embeddings = true; }
void gpt2(Config& c) {
  c.model.architecture = Architecture::kGpt2;
  c.model.kv_heads.reset();
  c.model.tied_embeddings = true;
}
void muon(Config& c) { c.training.optimizer.name = Optimizer::kMuon; }
void int8_parameters(Config& c) { c.training.compression.parameters = ParameterEncoding::kInt8; }
void narrow_reductions(Config& c) { c.training.reduce_dtype = ReduceDtype::kBf16; }
void full_accumulation(Config& c) { c.parallel.gradient_accumulation = GradientAccumulation::kFull; }
void after_step(Config& c) { c.parallel.reshard = Reshard::kAfterStep; }
void full_recompute(Config& c) { c.training.recompute = RecomputeMode::kFull; }
Change secondary(int64_t shards) {
  return [=](Config& c) { c.parallel.secondary_shards = shards; };
}
void compressed(Config& c) {
  c.training.compression.method = CompressionMethod::kInt8;
  c.parallel.gradient_accumulation = GradientAccumulation::kFull;
}
void replica_compressed(Config& c) {
  compressed(c);
  c.training.compression.scope = CompressionScope::kReplicate;
}
void power_sgd(Config& c) {
  compressed(c);
  c.training.compression.method = CompressionMethod::kPowerSgd;
}
Change robust(AggregationRule rule) {
  return [=](Config& c) {
    c.security.aggregation.rule = rule;
    c.security.aggregation.byzantine = 1;
    c.parallel.gradient_accumulation = GradientAccumulation::kFull;
  };
}
void islands(Config& c) {
  c.parallel.islands = 2;
  c.training.local.steps = 4;
  c.training.global_batch_size *= 2;
}
void delayed(Config& c) {
  c.training.local.fragments = 2;
  c.training.local.delay = 1;
}
void elastic(Config& c) {
  c.parallel.islands = 2;
  c.training.asynchronous.mode = AsynchronousMode::kElasticAveraging;
  c.training.global_batch_size *= 2;
}
void servers(Config& c) {
  c.parallel.islands = 2;
  c.training.asynchronous.mode = AsynchronousMode::kParameterServer;
  c.training.global_batch_size *= 2;
}
void ema(Config& c) { c.training.ema.decay = 0.99; }
void documents(Config& c) { c.data.document_mask = true; }
void buckets(Config& c) { c.parallel.bucket_size = 4 << 20; }
void no_overlap(Config& c) { c.parallel.overlap = false; }
void adapters(Config& c) { c.model.adapter.rank = 8; }
void frozen(Config& c) { c.model.frozen = {"embedding.weight", "blocks.?.*", "*_norm.*"}; }
Change layers(std::vector<int64_t> split) {
  return [=](Config& c) { c.parallel.layers_per_stage = split; };
}

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"serial", 0.02, {}},
      {"serial fp32", 0.02, {precision("fp32")}},
      {"serial gpt2 tied", 0.02, {gpt2}},
      {"serial tied zero 3", 0.02, {tied, zero(3)}},
      {"serial recompute full", 0.02, {full_recompute}},
      {"serial documents", 0.02, {documents}},
      {"serial ema", 0.02, {ema}},
      {"tensor 2", 0.02, {tensor(2, false)}},
      {"tensor 4 sequence parallel", 0.07, {tensor(4, true)}},
      {"tensor 8 sequence parallel, kv heads shared", 3.32, {tensor(8, true)}},
      {"zero 0 data 4", 0.02, {zero(0)}},
      {"zero 1", 0.02, {zero(1)}},
      {"zero 2", 0.02, {zero(2)}},
      {"zero 2 full accumulation", 0.02, {zero(2), full_accumulation}},
      {"zero 3", 0.02, {zero(3)}},
      {"zero 3 fp32", 0.02, {zero(3), precision("fp32")}},
      {"zero 3 prefetch 0", 0.02, {zero(3), prefetch(0)}},
      {"zero 3 prefetch 2", 0.02, {zero(3), prefetch(2)}},
      {"zero 3 replicate 2", 0.02, {zero(3, 4, 2)}},
      {"zero 3 after step", 0.02, {zero(3), after_step}},
      {"zero 3 buckets", 0.02, {zero(3), buckets}},
      {"zero 3 bf16 reductions", 0.02, {zero(3), narrow_reductions}},
      {"zero 1 bf16 reductions", 0.42, {zero(1), narrow_reductions}},
      {"zero 0 bf16 reductions", 0.02, {zero(0), narrow_reductions}},
      {"zero 2 bf16 reductions, replicate 2", 3.85, {zero(2, 4, 2), narrow_reductions}},
      {"zero 3 buckets tied", 0.02, {zero(3), buckets, tied}},
      {"adapters zero 3 buckets", 0.02, {adapters, zero(3), buckets}},
      {"zero 3 int8 parameters", 4.34, {zero(3), int8_parameters}},
      {"zero 1 int8 parameters fp32", 1.36, {zero(1), int8_parameters, precision("fp32")}},
      {"zero 3 secondary 2", 0.02, {zero(3), secondary(2)}},
      {"zero 3 secondary 2 int8 parameters", 3.72, {zero(3), secondary(2), int8_parameters}},
      {"zero 2 int8 gradients", 0.26, {zero(2), compressed}},
      {"zero 1 int8 gradients", 0.26, {zero(1), compressed}},
      {"zero 0 int8 gradients", 0.12, {zero(0), compressed}},
      {"zero 1 int8 gradients, replicate 2", 0.25, {zero(1, 4, 2), compressed}},
      {"zero 1 int8 gradients of replicas", 0.30, {zero(1, 4, 2), replica_compressed}},
      {"zero 1 power_sgd, replicate 2", 0.52, {zero(1, 4, 2), power_sgd}},
      {"zero 1 median", 0.02, {zero(1), robust(AggregationRule::kMedian)}},
      {"zero 1 median int8", 0.83, {zero(1), robust(AggregationRule::kMedian), compressed}},
      {"zero 0 centered clipping", 1.44, {zero(0), robust(AggregationRule::kCenteredClipping)}},
      {"zero 3 tensor 2 sequence parallel", 0.07, {zero(3), tensor(2, true)}},
      {"gpipe 4", 0.07, {pipeline("gpipe", 4)}},
      {"1f1b 4", 0.02, {pipeline("1f1b", 4)}},
      {"1f1b 4 without overlap", 0.17, {pipeline("1f1b", 4), no_overlap}},
      {"1f1b 4 tied", 0.02, {pipeline("1f1b", 4), tied}},
      {"1f1b 4 zero 2", 0.02, {pipeline("1f1b", 4), zero(2)}},
      {"1f1b 4 zero 3", 0.02, {pipeline("1f1b", 4), zero(3)}},
      {"1f1b 4 zero 3 prefetch 2", 0.02, {pipeline("1f1b", 4), zero(3), prefetch(2)}},
      {"1f1b 4 zero 3 tied fp32", 0.02, {pipeline("1f1b", 4), zero(3), tied, precision("fp32")}},
      {"1f1b 4 uneven zero 3", 0.29, {pipeline("1f1b", 4), zero(3), layers({5, 4, 3, 0})}},
      {"1f1b 2 tensor 2 zero 1", 0.05, {pipeline("1f1b", 2), tensor(2, true), zero(1)}},
      {"gpipe 4 zero 3", 0.11, {pipeline("gpipe", 4), zero(3)}},
      {"interleaved 2x3", 0.02, {pipeline("interleaved_1f1b", 2, 3)}},
      {"interleaved 2x3 zero 2", 0.02, {pipeline("interleaved_1f1b", 2, 3), zero(2)}},
      {"interleaved 2x3 zero 3", 0.02, {pipeline("interleaved_1f1b", 2, 3), zero(3)}},
      {"interleaved 3x4 zero 3 prefetch 0", 0.14, {pipeline("interleaved_1f1b", 3, 4), zero(3), prefetch(0)}},
      {"interleaved 3x4 zero 3", 0.14, {pipeline("interleaved_1f1b", 3, 4), zero(3)}},
      {"interleaved 3x4 zero 3 prefetch 2", 5.48, {pipeline("interleaved_1f1b", 3, 4), zero(3), prefetch(2)}},
      {"interleaved 3x4 zero 2 tied", 0.12, {pipeline("interleaved_1f1b", 3, 4), zero(2), tied}},
      {"zb_h1 4 zero 1", 0.14, {pipeline("zb_h1", 4), zero(1)}},
      {"zb_h1 4 zero 3", 0.16, {pipeline("zb_h1", 4), zero(3)}},
      {"zb_h2 4", 0.08, {pipeline("zb_h2", 4)}},
      {"zb_h2 4 zero 2", 0.13, {pipeline("zb_h2", 4), zero(2)}},
      {"zb_v 4", 0.16, {pipeline("zb_v", 4)}},
      {"zb_v 4 tied zero 2", 0.29, {pipeline("zb_v", 4), tied, zero(2)}},
      {"zb_v 4 tied zero 3", 5.41, {pipeline("zb_v", 4), tied, zero(3)}},
      {"zb_v 4 zero 3 prefetch 2", 7.11, {pipeline("zb_v", 4), zero(3), prefetch(2)}},
      {"muon", 0.02, {muon}},
      {"muon tensor 2 zero 1", 0.02, {muon, tensor(2, false), zero(1)}},
      {"muon 1f1b 2 zero 3 fp32", 0.02, {muon, pipeline("1f1b", 2), zero(3), precision("fp32")}},
      {"local updates zero 3", 2.13, {islands, zero(3)}},
      {"local updates of fragments, delayed", 2.59, {islands, delayed, pipeline("1f1b", 2)}},
      {"elastic averaging", 0.73, {elastic, zero(1)}},
      {"parameter servers", 0.02, {servers, zero(1)}},
      {"adapters", 0.02, {adapters}},
      {"adapters fp32 zero 1", 0.02, {adapters, precision("fp32"), zero(1)}},
      {"adapters zero 2", 0.02, {adapters, zero(2)}},
      {"adapters zero 3", 0.02, {adapters, zero(3)}},
      {"adapters 1f1b 4 zero 3 prefetch 2", 0.02, {adapters, pipeline("1f1b", 4), zero(3), prefetch(2)}},
      {"adapters zb_h1 4 zero 3", 2.32, {adapters, pipeline("zb_h1", 4), zero(3)}},
      {"frozen zero 0", 0.02, {frozen}},
      {"frozen zero 3", 0.02, {frozen, zero(3)}},
      {"frozen 1f1b 4 zero 2 tied", 0.02, {frozen, tied, pipeline("1f1b", 4), zero(2)}},
  };
  return all;
}

Config config_of(const Case& one) {
  Config c = base();
  for (const Change& change : one.changes) change(c);
  return resolve(c);
}

TEST_CASE("memory by formula is no farther from counted memory than its cases state") {
  for (const Case& one : cases()) {
    const Config config = config_of(one);
    const std::vector<RankBytes> counted = counted_memory(config, cpu()), formula = formula_memory(config, cpu());
    REQUIRE(formula.size() == counted.size());
    for (size_t r = 0; r < counted.size(); ++r) {
      CAPTURE(one.name, r);
      const double limit = one.percent / 100 * counted[r].peak;
      CHECK(std::abs(formula[r].parameters - counted[r].parameters) <= limit);
      CHECK(std::abs(formula[r].gradients - counted[r].gradients) <= limit);
      CHECK(std::abs(formula[r].optimizer - counted[r].optimizer) <= limit);
      CHECK(std::abs(formula[r].activations - counted[r].activations) <= limit);
      CHECK(std::abs(formula[r].other - counted[r].other) <= limit);
      CHECK(std::abs(formula[r].peak - counted[r].peak) <= limit);
    }
  }
}

}  // namespace
}  // namespace trireme
