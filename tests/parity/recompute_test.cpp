// Recomputed activations are bit-identical to kept ones, and activations that are not kept take no memory.
#include <algorithm>
#include <span>

#include "parallel/comm/null.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/recompute.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

struct Mode {
  RecomputeMode recompute;
  int64_t every;
  bool elementwise = true;
};
constexpr Mode kModes[] = {
    {RecomputeMode::kSelective, 1}, {RecomputeMode::kNone, 1, false}, {RecomputeMode::kFull, 1}, {RecomputeMode::kFull, 2, false}};

Config with(Config config, const Mode& mode) {
  config.training.recompute = mode.recompute;
  config.training.recompute_every = mode.every;
  config.training.recompute_elementwise = mode.elementwise;
  return config;
}

std::vector<ParityLayout> layouts() {
  std::vector<ParityLayout> all(5);
  all[1].tensor = 2;
  all[1].sequence_parallel = true;
  all[1].micro_batch = 2;
  all[2].pipeline = 2;
  all[2].schedule = ScheduleKind::kZbH1;  // I of a block runs long before its W
  all[3].data = 2;
  all[3].zero = 3;
  all[4] = {{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3}};
  return all;
}

constexpr ParityModel kModels[] = {ParityModel::kLlamaGrouped, ParityModel::kLlama,   ParityModel::kGpt2,
                                   ParityModel::kGpt2Dropout,  ParityModel::kGptNeoX, ParityModel::kGemma3};

void check_bits(const Config& config, int steps, Device device) {
  const RunRecord kept = train_on_threads(config, steps, device, true);
  const auto modes = std::span(kModes).first(config.parallel.tensor * config.parallel.pipeline > 2 ? 4 : 3);
  for (const Mode& mode : modes) {
    INFO(name_of(mode.recompute) << " every " << mode.every << ", elementwise " << mode.elementwise);
    const RunRecord again = train_on_threads(with(config, mode), steps, device, true);
    CHECK(difference(kept, again, 0) == "");  // shows what differs
    CHECK(kept == again);
  }
}

/// Sequences split into documents of several lengths.
struct Documents final : Dataset {
  explicit Documents(const Config& config) : whole(29, config.training.sequence_length, *config.model.vocab_size) {}
  int64_t sequences() const override { return whole.sequences(); }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    std::vector<int64_t> one;
    whole.read(sample, tokens, targets, one);
    for (const int64_t length : sample % 2 == 0 ? std::vector<int64_t>{5, 1, 3, 3} : std::vector<int64_t>{12}) segments.push_back(length);
  }
  RaggedDataset whole;
};

std::vector<std::vector<double>> gradients_of_documents(Config config) {
  config.data.document_mask = true;
  std::vector<std::vector<double>> all;
  run_ranks(static_cast<int>(config.parallel.tensor), [&](Communicator& world) {
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1, nullptr};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    trainer.step(Documents(config), 0, 1e-3);
    if (world.rank() > 0) return;
    for (const OwnedBox& owned : trainer.owned_boxes())
      all.emplace_back(owned.gradient.data<double>(), owned.gradient.data<double>() + owned.gradient.numel());
  });
  return all;
}

/// Peak bytes of activations of one rank, counted on the meta device.
int64_t counted_peak(const Config& config, int rank) {
  Arena arena(Device::kMeta);
  Context ctx{Device::kMeta, &arena, 1, nullptr};
  const ParallelConfig& p = config.parallel;
  NullCommunicator world(rank, static_cast<int>(p.tensor * p.pipeline * *p.data), "world");
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  for (int step = 0; step < 2; ++step) trainer.step(data, step, 1e-3);
  return arena.peak_bytes(MemoryCategory::kActivations);
}

Config with_layers(Config config, std::vector<int64_t> layers) {
  config.model.layers = 0;
  for (const int64_t n : layers) config.model.layers += n;
  config.parallel.layers_per_stage = std::move(layers);
  return config;
}

/// Bytes that a block keeps per micro-batch from forward to backward, on one tensor rank. `elementwise`: norms and activation functions are recomputed.
int64_t kept_bytes(const Config& config, Recompute recompute, bool elementwise = true) {
  const ModelConfig& m = config.model;
  const int64_t streams = m.block_residual() == ResidualKind::kParallel ? 1 : 2, ups = m.preset().gated ? 2 : 1,
                post_norms = m.preset().norms == NormPlacement::kBoth ? 2 : 0,
                statistics_of_norms = m.preset().norm == NormKind::kLayer ? 4 : 2 + post_norms;
  const DType compute = precision_of(config.training).compute;
  const int64_t rows = config.training.micro_batch_size * config.training.sequence_length;
  const int64_t size = size_of(compute), wide = size_of(accumulator_of(compute));
  if (recompute == Recompute::kFull) return rows * m.hidden_size * size;
  const int64_t result = recompute == Recompute::kNone ? m.heads * *m.head_size * size + m.heads * wide : 0;  // attention's result and log-sum-exp
  const int64_t values = (streams + post_norms) * m.hidden_size + (m.heads + 2 * *m.kv_heads) * *m.head_size + ups * *m.ffn_size;
  const int64_t results = elementwise ? 0 : 2 * m.hidden_size + *m.ffn_size;
  return rows * ((values + results) * size + statistics_of_norms * wide + result);
}

}  // namespace

TEST_CASE("recompute_every selects every n-th block, starting with the first") {
  using enum Recompute;
  const auto plan = [](int64_t layers, RecomputeMode recompute, int64_t every) {
    Config config;
    config.model.layers = layers;
    config.training.recompute = recompute;
    config.training.recompute_every = every;
    return recompute_policy(config);
  };
  CHECK(plan(3, RecomputeMode::kFull, 2) == std::vector{kFull, kNone, kFull});
  CHECK(plan(3, RecomputeMode::kSelective, 1) == std::vector{kSelective, kSelective, kSelective});
  CHECK(plan(7, RecomputeMode::kSelective, 3) == std::vector{kSelective, kNone, kNone, kSelective, kNone, kNone, kSelective});
  CHECK(plan(2, RecomputeMode::kFull, 5) == std::vector{kFull, kNone});
  CHECK(plan(2, RecomputeMode::kNone, 1) == std::vector{kNone, kNone});
}

/// Calls body(n, model, layout) for the n-th pair of a model and a layout, of every `stride`-th pair from `first` on.
template <class Body>
static void for_each_model_and_layout(size_t first, size_t stride, const Body& body) {
  size_t turn = 0;
  for (const ParityModel model : kModels) {
    for (const ParityLayout& layout : layouts()) {
      if (const size_t n = turn++; n % stride == first) body(n, model, layout);
    }
  }
}

static void check_bits_in_fp64(size_t first, size_t stride) {
  for_each_model_and_layout(first, stride, [](size_t, ParityModel model, const ParityLayout& layout) {
    INFO(name_of(model) << " " << layout.str());
    check_bits(parity_config(model, layout, "fp64"), 2, Device::kReference);
  });
}

static void check_bits_on_cpu_kernels(size_t first, size_t stride) {
  for_each_model_and_layout(first, stride, [](size_t n, ParityModel model, const ParityLayout& layout) {
    constexpr const char* kPrecisions[] = {"fp32", "bf16", "fp16"};
    const char* const precision = kPrecisions[n % 3];
    INFO(name_of(model) << " " << layout.str() << " " << precision);
    check_bits(parity_config(model, layout, precision), 2, Device::kCpu);
  });
}

// One test has every second pair of a model and a layout, and the other test has the rest.
TEST_CASE("recomputation is bit-identical in fp64, with in-flight buffers poisoned") { check_bits_in_fp64(0, 2); }

TEST_CASE("recomputation is bit-identical on the CPU kernels") { check_bits_on_cpu_kernels(1, 2); }

TEST_CASE("recomputation is bit-identical for every model in every layout", "[slow]") {
  check_bits_in_fp64(0, 1);
  check_bits_on_cpu_kernels(0, 1);
}

TEST_CASE("recomputation of packed documents is bit-identical") {
  for (const ParityModel model : kModels) {
    ParityLayout layout;
    layout.tensor = 2;
    layout.micro_batch = 2;
    const Config config = parity_config(model, layout, "fp64");
    const auto kept = gradients_of_documents(config);
    for (const Mode& mode : kModes) {
      INFO(name_of(model) << " " << name_of(mode.recompute) << " every " << mode.every);
      CHECK(gradients_of_documents(with(config, mode)) == kept);
    }
  }
}

TEST_CASE("a recomputing block keeps the bytes of the formula per micro-batch in flight") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2, ParityModel::kGptNeoX, ParityModel::kGemma3}) {
    for (const char* const precision : {"fp32", "bf16"}) {
      ParityLayout layout;
      layout.pipeline = 2;
      const Config base = parity_config(model, layout, precision);
      const auto grows = [&](const Mode& mode, int64_t from, int64_t to) {
        const Config config = with(base, mode);
        return counted_peak(with_layers(config, {to, 2}), 0) - counted_peak(with_layers(config, {from, 2}), 0);
      };
      INFO(name_of(model) << " " << precision);
      const int64_t none = kept_bytes(base, Recompute::kNone), selective = kept_bytes(base, Recompute::kSelective);
      const int64_t full = kept_bytes(base, Recompute::kFull);
      CHECK(full < selective);
      CHECK(selective < none);
      // Rank 0 of two has two micro-batches in flight.
      CHECK(grows({RecomputeMode::kNone, 1}, 5, 6) == 2 * none);
      CHECK(grows({RecomputeMode::kSelective, 1}, 5, 6) == 2 * selective);
      CHECK(grows({RecomputeMode::kFull, 1}, 5, 6) == 2 * full);
      CHECK(grows({RecomputeMode::kSelective, 2}, 4, 6) == 2 * (none + selective));
      CHECK(grows({RecomputeMode::kFull, 2}, 4, 6) == 2 * (none + full));
      CHECK(grows({RecomputeMode::kNone, 1, false}, 5, 6) == 2 * kept_bytes(base, Recompute::kNone, false));
      CHECK(grows({RecomputeMode::kSelective, 1, false}, 5, 6) == 2 * kept_bytes(base, Recompute::kSelective, false));
      CHECK(grows({RecomputeMode::kFull, 1, false}, 5, 6) == 2 * full);
    }
  }
}

TEST_CASE("memory counted on the meta device equals measured memory with recomputation") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2}) {
    for (const Mode& mode : kModes) {
      const ParityLayout layout{{.tensor = 2, .pipeline = 2, .data = 2, .zero = 3, .sequence_parallel = true}};
      const Config config = with(parity_config(model, layout, "bf16"), mode);
      std::vector<int64_t> measured(static_cast<size_t>(layout.world()));
      run_ranks(layout.world(), [&](Communicator& world) {
        Arena arena(Device::kReference);
        Context ctx{Device::kReference, &arena, 1, nullptr};
        Trainer trainer(ctx, world, config, true);
        trainer.initialise();
        const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
        for (int step = 0; step < 2; ++step) trainer.step(data, step, 1e-3);
        measured[static_cast<size_t>(world.rank())] = arena.peak_bytes(MemoryCategory::kActivations);
      });
      INFO(name_of(model) << " " << name_of(mode.recompute) << " every " << mode.every);
      for (int rank = 0; rank < layout.world(); ++rank) CHECK(counted_peak(config, rank) == measured[static_cast<size_t>(rank)]);
    }
  }
}

}  // namespace trireme::test
