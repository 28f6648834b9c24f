// Gathers of parameters. Encoded ones: what the layers read is what the owners' messages decode to, in every layout; the owned shards stay exact.
// Secondary shards: only the first gather of a step is over all shards, and no bit depends on it.
#include <cmath>

#include "kernels/ops/compress.h"
#include "parallel/comm/null.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/run_files.h"
#include "trainer/plan/gradient_seconds.h"
#include "trainer/resilience/replica_check.h"

namespace trireme::test {
namespace {

const RaggedDataset kEncodedData(29, 12, 61);

/// A model in which each row of each local matrix consists of whole blocks of 8 elements, in every layout: which elements share a scale, and so what is
/// decoded, does not depend on the layout.
Config whole_blocks(const std::string& spec, int islands = 1) {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  layout.islands = islands;
  Config config = parity_config(ParityModel::kLlamaGrouped, layout, "fp64");
  ModelConfig& m = config.model;
  m.hidden_size = 32;
  m.heads = 4;
  m.kv_heads = 2;
  m.head_size = 8;
  m.ffn_size = 64;
  config.training.compression.parameters = ParameterEncoding::kInt8;
  config.training.compression.block = 8;
  return config;
}

/// A model whose sizes divide nothing.
Config odd_sizes(ParityModel model, const std::string& spec, ParameterEncoding parameters, const std::string& precision = "fp64") {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(spec);
  Config config = parity_config(model, layout, precision);
  config.training.compression.parameters = parameters;
  config.training.compression.block = 32;
  return config;
}

struct OddCase {
  ParityModel model;
  const char* layout;
};
constexpr OddCase kOddCases[] = {{ParityModel::kGpt2, "dp2z1"},
                                 {ParityModel::kLlamaGrouped, "pp2dp3z2"},
                                 {ParityModel::kLlamaGrouped, "tp2pp2dp2z3-sp"},
                                 {ParityModel::kGpt2Dropout, "tp2pp2dp2z3"},
                                 {ParityModel::kLlamaGrouped, "tp4dp2z3"},
                                 {ParityModel::kLlama, "dp4rep2z3"}};

std::vector<double> encoded_steps(Trainer& trainer, int first, int last) {
  std::vector<double> all;
  for (int step = first; step < last; ++step) {
    const StepResult result = trainer.step(kEncodedData, step, 3e-3);
    all.insert(all.end(), {result.loss, result.grad_norm});
  }
  return all;
}

/// Bytes that a rank sends to gather all of its units once, by the formula of ParamStore.
double bytes_of_gathers(const Config& config, int rank) {
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena, 1};
  NullCommunicator world(rank, world_of(config), "world");
  Trainer trainer(ctx, world, config, true);
  const int shards = trainer.mesh().shard->size();
  const auto vector_element = static_cast<double>(size_of(precision_of(config.training).master));
  double all = 0;
  for (const auto& stage : trainer.stages())
    for (const Unit* unit : stage->params().units()) {
      double longest = 0;
      for (int shard = 0; shard < shards; ++shard) {
        double bytes = 0;
        for (const Unit::Segment& segment : unit->segments(shard * unit->shard_numel(), (shard + 1) * unit->shard_numel())) {
          const auto count = static_cast<double>(segment.matrix_range().count());
          const double message = segment.spec->dims == 2 ? 4 * std::ceil(count / 32) + 4 * std::ceil(count / 4) : count * vector_element;
          bytes += 8 * std::ceil(message / 8);
        }
        longest = std::max(longest, bytes);
      }
      all += (shards - 1) * longest;
    }
  return all;
}

}  // namespace

TEST_CASE("encoded parameters: every layout trains the same model") {
  const RunRecord expected = train_on_threads(whole_blocks("dp2z1"), 4, Device::kReference, true);
  for (const char* layout : {"dp2z2", "dp2z3", "dp3z3", "dp4rep2z3", "dp4z1", "tp2dp2z1", "tp2sppp2dp2z3", "pp2dp3z2", "pp2dp2z1", "tp4dp2z3"}) {
    INFO(layout);
    CHECK(difference(expected, train_on_threads(whole_blocks(layout), 4, Device::kReference, true), 1e-10) == "");
  }
  const RunRecord islands = train_on_threads(whole_blocks("dp2z1", 2), 4, Device::kReference, true);
  CHECK(difference(islands, train_on_threads(whole_blocks("tp2dp2z3", 2), 4, Device::kReference, true), 1e-10) == "");
}

TEST_CASE("encoded parameters: the first step is that of one rank whose weights were rounded by hand") {
  const Config config = whole_blocks("tp1");
  const EncodingOptions encoding{.encoding = Encoding::kInt8, .block = 8};
  std::vector<double> expected;
  on_ranks(config, [&](Trainer& trainer) {
    trainer.initialise();
    Context& ctx = trainer.context();
    for (const OwnedBox& owned : trainer.owned_boxes()) {
      if (owned.spec->dims == 1) continue;
      const Tensor weight = owned.weight.flat(0, owned.weight.numel());
      const Tensor message = Tensor::empty(ctx, {encoded_bytes(encoding, weight.numel(), DType::kF64)}, DType::kU8, MemoryCategory::kWorkspace);
      encode(ctx, encoding, {}, weight, {}, message, {});
      std::fill_n(weight.data<double>(), weight.numel(), 0.0);
      decode(ctx, encoding, {}, message, weight);
    }
    trainer.weights_changed();
    expected = encoded_steps(trainer, 0, 1);
  });
  const RunRecord actual = train_on_threads(whole_blocks("dp2z1"), 1, Device::kReference);
  CHECK(actual.loss[0] == Approx(expected[0]).epsilon(1e-12));
  CHECK(actual.grad_norm[0] == Approx(expected[1]).epsilon(1e-12));
  Config plain = whole_blocks("dp2z1");
  plain.training.compression = {};
  CHECK(std::abs(train_on_threads(plain, 1, Device::kReference).loss[0] - expected[0]) > 1e-6 * expected[0]);
}

TEST_CASE("encoded parameters: models of odd sizes train under every sharding") {
  for (const auto& [model, layout] : kOddCases) {
    for (const char* precision : {"fp64", "fp32", "bf16"}) {
      INFO(layout << ", " << precision);
      const Device device = std::string(precision) == "fp64" ? Device::kReference : Device::kCpu;
      const RunRecord plain = train_on_threads(odd_sizes(model, layout, ParameterEncoding::kNone, precision), 3, device);
      const RunRecord encoded = train_on_threads(odd_sizes(model, layout, ParameterEncoding::kInt8, precision), 3, device, true);
      for (size_t step = 0; step < plain.loss.size(); ++step) {
        CHECK(encoded.loss[step] != plain.loss[step]);
        CHECK(std::abs(encoded.loss[step] - plain.loss[step]) < 0.02 * plain.loss[step]);
      }
    }
  }
}

TEST_CASE("encoded parameters: shards stay exact, copies are equal, and training resumes bit for bit") {
  for (const auto& [model, layout] : kOddCases) {
    INFO(layout);
    const Config encoded = odd_sizes(model, layout, ParameterEncoding::kInt8), plain = odd_sizes(model, layout, ParameterEncoding::kNone);
    GatheredState initial, after;
    on_ranks(plain, [&](Trainer& trainer) {
      trainer.initialise();
      initial.add(trainer);
    });
    const TemporaryDirectory directory;
    on_ranks(encoded, [&](Trainer& trainer) {
      trainer.initialise();
      trainer.evaluate(kEncodedData, 1);  // gathers all parameters
      after.add(trainer);
      const std::vector<double> through = encoded_steps(trainer, 0, 4);
      const std::string differences = replica_differences(trainer);
      TRIREME_CHECK(differences.empty(), layout, ": ", differences);
      Arena arena(Device::kReference, true);
      Context ctx{Device::kReference, &arena, 1};
      std::vector<double> in_parts;
      for (int first = 0; first < 4; first += 2) {
        Trainer part(ctx, trainer.mesh().world, encoded, true);
        if (first == 0) {
          part.initialise();
        } else {
          CheckpointReader reader(directory.path / checkpoint_name(first));
          load_state(part, reader);
        }
        const std::vector<double> these = encoded_steps(part, first, first + 2);
        in_parts.insert(in_parts.end(), these.begin(), these.end());
        save(part, directory.path, first + 2);
      }
      TRIREME_CHECK(through == in_parts, layout, ": a resumed run differs");
    });
    CHECK(after.whole() == initial.whole());
  }
}

TEST_CASE("encoded parameters: memory and bytes on the wire are forecast exactly") {
  for (const char* precision : {"fp64", "bf16"}) {
    for (const auto& [model, layout] : kOddCases) {
      const Config config = odd_sizes(model, layout, ParameterEncoding::kInt8, precision);
      const MeasuredRun run = measured_run(config, kEncodedData);
      for (int rank = 0; rank < world_of(config); ++rank) {
        INFO(layout << " " << precision << ", rank " << rank);
        checked_forecast(config, run, rank);
        const double sent = run.communication[static_cast<size_t>(rank)].entry("shard", "all_gather").wire_bytes,
                     once = bytes_of_gathers(config, rank);
        if (config.parallel.zero_stage < 3) CHECK(sent == Approx(3 * once).epsilon(1e-12));
        if (config.parallel.zero_stage == 3) CHECK(sent > 3 * once);
      }
    }
  }
}

TEST_CASE("secondary shards: training has the bits of training without them, and only the first gather of a step is over all shards") {
  struct Case {
    const char* layout;
    int64_t secondary, micro_batches;
  };
  for (const ParameterEncoding parameters : {ParameterEncoding::kNone, ParameterEncoding::kInt8}) {
    for (const auto& [layout, secondary, micro_batches] :
         {Case{"dp4z3", 2, 3}, Case{"dp6z3mb2", 3, 1}, Case{"pp2dp4z3", 2, 3}, Case{"tp2dp4z3", 2, 3}, Case{"dp8rep2z3", 2, 1}}) {
      INFO(layout << ", secondary shards " << secondary << (parameters == ParameterEncoding::kInt8 ? ", encoded" : ""));
      Config plain = odd_sizes(ParityModel::kGpt2, layout, parameters), config = plain;
      if (std::string(layout) == "dp8rep2z3") plain.training.global_batch_size = config.training.global_batch_size = 16;
      config.parallel.secondary_shards = secondary;
      CHECK(train_on_threads(config, 3, Device::kReference, true) == train_on_threads(plain, 3, Device::kReference));
      const MeasuredRun without = measured_run(plain, kEncodedData), with = measured_run(config, kEncodedData);
      for (size_t rank = 0; rank < with.memory.size(); ++rank)
        CHECK(forecast_memory(config, static_cast<int>(rank), world_of(config)).peak == with.memory[rank].peak);
      const double over_all = without.communication[0].entry("shard", "all_gather").wire_bytes;
      const double first = with.communication[0].entry("shard", "all_gather").wire_bytes;
      const double further = with.communication[0].entry("secondary", "all_gather").wire_bytes;
      const double shards = static_cast<double>(*config.parallel.data / config.parallel.replicate), near = static_cast<double>(secondary);
      CHECK(micro_batches * first <= over_all);
      if (parameters == ParameterEncoding::kNone)  // all gathers but the first ones are over fewer ranks
        CHECK(further == Approx((over_all - first) * ((near - 1) / near) / ((shards - 1) / shards)).epsilon(1e-12));
    }
  }
}

TEST_CASE("encoded parameters: the planner counts a byte and a share of a scale for each element") {
  Config config = whole_blocks("dp2z3");
  CHECK(parameter_message_bytes(config) == 1.5);
  config.training.compression.block = 256;
  CHECK(parameter_message_bytes(config) == 1 + 4.0 / 256);
  config.training.precision = Arithmetic::kBf16;
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  cluster = resolve_cluster(cluster);
  const GroupPlacement shard = place_of(4, 1, cluster), alone = place_of(1, 1, cluster);
  constexpr double kElements = 1e8;
  CHECK(gather_seconds(config, shard, kElements, cluster) > all_gather_seconds(shard, (1 + 4.0 / 256) * kElements, cluster));
  CHECK(gather_seconds(config, alone, kElements, cluster) == 0);
  config.training.compression = {};
  CHECK(gather_seconds(config, shard, kElements, cluster) == all_gather_seconds(shard, 2 * kElements, cluster));
  config.parallel.data = 4;
  config.parallel.secondary_shards = 2;
  const double gathers = 2.0 * 12 / 4, first = all_gather_seconds(shard, 2 * kElements, cluster);
  const double further = all_gather_seconds(place_of(2, 1, cluster), 2 * kElements, cluster);
  CHECK(gather_seconds(config, shard, kElements, cluster) > (first + (gathers - 1) * further) / gathers);
  CHECK(gather_seconds(config, shard, kElements, cluster) < (first + (gathers - 1) * further) / gathers * 1.2);
}

}  // namespace trireme::test
