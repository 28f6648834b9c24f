// Memory three ways: counted on the meta device, measured in a real step, and by formula.
#include <algorithm>
#include <mutex>

#include "parallel/comm/null.h"
#include "parallel/comm/self.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

constexpr int kSteps = 2;

struct Memory {
  std::array<int64_t, kMemoryCategories> held{};  ///< between steps
  std::array<int64_t, kMemoryCategories> peak{};
  int64_t at(const std::array<int64_t, kMemoryCategories>& which, MemoryCategory category) const { return which[static_cast<size_t>(category)]; }
};

struct Subject {
  Memory memory;
  std::vector<int64_t> unit_numel;
  ActionList list;
  StageUnits units;
};

Subject run_steps(Communicator& world, const Config& config, Device device) {
  Arena arena(device);
  Context ctx{device, &arena, 1, nullptr};
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  for (int step = 0; step < kSteps; ++step) trainer.step(data, step, 1e-3);
  Subject subject;
  trainer.stage().begin(ctx, {}, config.training.sequence_length, RunMode::kTrain, 0);  // lets go of the last step's micro-batches
  for (size_t c = 0; c < kMemoryCategories; ++c) {
    subject.memory.held[c] = arena.current_bytes(static_cast<MemoryCategory>(c));
    subject.memory.peak[c] = arena.peak_bytes(static_cast<MemoryCategory>(c));
  }
  for (const Unit* unit : trainer.stage().params().units()) subject.unit_numel.push_back(unit->numel());
  subject.list = trainer.training_list();
  subject.units = stage_units(stage_range(*config.parallel.layers_per_stage, trainer.mesh().at.pipeline), config.model);
  return subject;
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// P = elements of this rank's units, each padded to a multiple of S.
struct Formula {
  int64_t parameters, gradients, optimizer;  ///< held between steps
  int64_t peak_parameters, peak_gradients;   ///< with what is gathered or not yet reduced at the worst moment
};

Formula formula(const Subject& subject, const Config& config) {
  const Precision precision = precision_of(config.training);
  const int64_t size = size_of(precision.compute), wide = size_of(precision.master);
  const bool masters = precision.master != precision.compute;
  const ZeroPolicy policy = zero_policy(config.parallel);
  const int64_t S = policy.shard;
  int64_t P = 0;
  std::vector<int64_t> padded;
  for (const int64_t n : subject.unit_numel) {
    padded.push_back(round_up(n, S));
    P += padded.back();
  }
  Formula f{};
  f.parameters = size * (policy.parameters_resident ? P : masters ? 0 : P / S);
  f.gradients = wide * (policy.gradients_resident ? P : P / S);
  f.optimizer = (masters ? 3 : 2) * wide * P / S;
  // Walks the list: what is gathered, and which full gradients live between a unit's first W and the reduction after the next one's.
  int64_t gathered = 0, most_gathered = 0, full = 0, most_full = 0;
  int reducing = -1;
  std::vector<bool> alive(padded.size());
  for (const Action& action : subject.list) {
    const auto unit = static_cast<size_t>(action.unit);
    switch (action.type) {
      case ActionType::kUnshard: gathered += padded[unit]; break;
      case ActionType::kReshard: gathered -= padded[unit]; break;
      case ActionType::kBackward:
        for (const int u : subject.units.units_of_part[unit]) {
          if (u == reducing) {  // its previous reduction is settled first
            full -= padded[static_cast<size_t>(u)] + padded[static_cast<size_t>(u)] / S;
            alive[static_cast<size_t>(u)] = false;
            reducing = -1;
          }
          if (!alive[static_cast<size_t>(u)]) full += padded[static_cast<size_t>(u)];
          alive[static_cast<size_t>(u)] = true;
        }
        break;
      case ActionType::kReduceReplicas:
      case ActionType::kReduceGrads:
        if (reducing >= 0 && (action.type == ActionType::kReduceGrads || reducing == action.unit)) {
          full -= padded[static_cast<size_t>(reducing)] + padded[static_cast<size_t>(reducing)] / S;
          alive[static_cast<size_t>(reducing)] = false;
          reducing = -1;
        }
        if (action.type == ActionType::kReduceGrads) {
          full += padded[unit] / S;  // where the reduce-scatter lands
          reducing = action.unit;
        }
        break;
      default: break;
    }
    most_gathered = std::max(most_gathered, gathered);
    most_full = std::max(most_full, full);
  }
  f.peak_parameters = f.parameters + (policy.parameters_resident ? 0 : size * most_gathered);
  f.peak_gradients = f.gradients + (policy.gradients_resident ? 0 : wide * most_full);
  return f;
}

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int replicate : {1, 2}) {
      if (zero == 0 && replicate == 2) continue;
      Layout layout;
      layout.tensor = 2;
      layout.data = 4;
      layout.zero = zero;
      layout.replicate = replicate;
      layout.sequence_parallel = true;
      all.push_back(layout);
      layout.tensor = 1;
      layout.pipeline = 2;
      layout.data = 3;
      layout.prefetch = 2;
      layout.replicate = replicate == 2 ? 3 : 1;
      all.push_back(layout);
      if (zero == 3) {
        layout.reshard = "after_step";
        layout.accumulation = "full";
        all.push_back(layout);
      }
    }
  }
  return all;
}

std::vector<std::pair<Layout, std::string>> cases() {
  std::vector<std::pair<Layout, std::string>> all;
  for (const Layout& layout : layouts()) {
    all.emplace_back(layout, "fp32");
    all.emplace_back(layout, "bf16");
  }
  return all;
}

}  // namespace

TEST_CASE("memory counted on the meta device is what a step takes, and what the formulas say") {
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kGpt2}) {
    for (const auto& [layout, precision] : cases()) {
      const Config config = parity_config(model, layout, precision);
      std::vector<Subject> measured(static_cast<size_t>(layout.world()));
      run_ranks(layout.world(),
                [&](Communicator& world) { measured[static_cast<size_t>(world.rank())] = run_steps(world, config, Device::kReference); });
      for (int rank = 0; rank < layout.world(); ++rank) {
        INFO(name_of(model) << " " << layout.str() << " " << precision << " rank " << rank);
        NullCommunicator world(rank, layout.world(), "world");
        const Subject counted = run_steps(world, config, Device::kMeta);
        const Subject& real = measured[static_cast<size_t>(rank)];
        CHECK(counted.memory.held == real.memory.held);
        CHECK(counted.memory.peak == real.memory.peak);
        const Formula f = formula(real, config);
        const Memory& m = real.memory;
        CHECK(m.at(m.held, MemoryCategory::kParameters) == f.parameters);
        CHECK(m.at(m.held, MemoryCategory::kGradients) == f.gradients);
        CHECK(m.at(m.held, MemoryCategory::kOptimizer) == f.optimizer);
        CHECK(m.at(m.peak, MemoryCategory::kParameters) == f.peak_parameters);
        CHECK(m.at(m.peak, MemoryCategory::kGradients) == f.peak_gradients);
        CHECK(m.at(m.held, MemoryCategory::kActivations) == 0);
      }
    }
  }
}

TEST_CASE("a block keeps from forward to backward what is dearer to make again than to keep, and no more") {
  const auto peak_with = [](Config config, int64_t layers) {
    config.model.layers = layers;
    config.parallel.layers_per_stage = {layers};
    SelfCommunicator world("world");
    return run_steps(world, config, Device::kMeta).memory.peak[static_cast<size_t>(MemoryCategory::kActivations)];
  };
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2}) {
    for (const char* precision : {"fp32", "bf16"}) {
      const Config config = parity_config(model, {}, precision);
      const ModelConfig& m = config.model;
      const bool gpt2 = m.architecture == "gpt2";
      const int64_t rows = config.training.micro_batch_size * config.training.sequence_length;
      // The residual stream before each branch; queries, keys, values; the attention's result; the MLP before its activation. Each takes a product to make
      // again. Not both normalised inputs and the MLP after its activation, which take a pass over memory.
      const int64_t values = 2 * m.hidden_size + (m.heads + 2 * *m.kv_heads) * *m.head_size + m.heads * *m.head_size + (gpt2 ? 1 : 2) * *m.ffn_size;
      // A row's log-sum-exp in each head and 1 / deviation in both norms, in LayerNorm its mean too.
      const int64_t statistics = m.heads + (gpt2 ? 4 : 2);
      INFO(name_of(model) << " " << precision);
      const DType compute = precision_of(config.training).compute;
      CHECK(peak_with(config, 6) - peak_with(config, 5) == rows * (values * size_of(compute) + statistics * size_of(accumulator_of(compute))));
    }
  }
}

TEST_CASE("a step after the second asks the system for no memory") {
  for (const Device device : {Device::kReference, Device::kCpu}) {
    for (const char* const precision : {"fp32", "bf16", "fp16"}) {
      const Config config = parity_config(ParityModel::kLlamaGrouped, {}, precision);
      const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
      SelfCommunicator world("world");
      Arena arena(device);
      Context ctx{device, &arena, 2, nullptr};
      Trainer trainer(ctx, world, config, true);
      trainer.initialise();
      for (int step = 0; step < 2; ++step) trainer.step(data, step, 1e-3);
      const int64_t before = arena.system_allocations();
      for (int step = 2; step < 6; ++step) trainer.step(data, step, 1e-3);
      INFO(precision << (device == Device::kCpu ? " on the fast kernels" : " on the reference"));
      CHECK(arena.system_allocations() == before);
    }
  }
}

}  // namespace trireme::test
