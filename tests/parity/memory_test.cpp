// Memory in three ways: counted on the meta device, measured in a real step, and by formula.
#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "parallel/comm/null.h"
#include "parallel/comm/self.h"
#include "tests/parity/layouts.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/memory_table.h"
#include "trainer/loop/recompute.h"
#include "trainer/loop/trainer.h"

namespace trireme::test {
namespace {

constexpr int kSteps = 2;

struct Memory {
  std::array<int64_t, kMemoryCategories> held{};  ///< resident between steps
  std::array<int64_t, kMemoryCategories> peak{};
  int64_t at(const std::array<int64_t, kMemoryCategories>& which, MemoryCategory category) const { return which[static_cast<size_t>(category)]; }
};

using UnitKey = std::pair<int, int>;  ///< stage, unit

struct Subject {
  Memory memory;
  std::map<UnitKey, int64_t> unit_numel;  ///< elements of this rank's units
  ActionList list;
  std::vector<StageUnits> units;  ///< of all stages
};

Subject run_steps(Communicator& world, const Config& config, Device device) {
  Arena arena(device);
  Context ctx{device, &arena, 1, nullptr};
  Trainer trainer(ctx, world, config, true);
  trainer.initialise();
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  for (int step = 0; step < kSteps; ++step) trainer.step(data, step, 1e-3);
  Subject subject;
  for (const auto& stage : trainer.stages())
    stage->begin(ctx, {}, config.training.sequence_length, RunMode::kTrain, 0);  // frees the activations of the last step
  for (size_t c = 0; c < kMemoryCategories; ++c) {
    subject.memory.held[c] = arena.current_bytes(static_cast<MemoryCategory>(c));
    subject.memory.peak[c] = arena.peak_bytes(static_cast<MemoryCategory>(c));
  }
  for (const auto& stage : trainer.stages()) {
    int unit = 0;
    for (const Unit* one : stage->params().units()) subject.unit_numel[{stage->range().stage, unit++}] = one->numel();
  }
  subject.list = trainer.program().training_list();
  subject.units = stage_units(config, trainer.stage_rank());
  return subject;
}

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Formulas in P = elements of this rank's units, each padded to a multiple of 64 S.
struct Formula {
  int64_t parameters, gradients, optimizer;  ///< resident between steps
  int64_t peak_parameters, peak_gradients;   ///< including what is gathered or not yet reduced at the peak
};

/// Gradient memory beyond the shards: full gradients, from a unit's first W to the end of its reduction, and the reduction's output.
struct GradientWalk {
  std::map<UnitKey, int64_t> padded;
  int64_t shards;
  std::set<UnitKey> alive = {}, scattered = {};
  int64_t full = 0;

  void add_to(UnitKey unit) {
    if (alive.insert(unit).second) full += padded[unit];
  }
  void reduce(UnitKey unit) {
    full += padded[unit] / shards;
    scattered.insert(unit);
  }
  void wait(UnitKey unit) {
    if (scattered.erase(unit) == 0) return;  // a sum over replicas
    full -= padded[unit] + padded[unit] / shards;
    alive.erase(unit);
  }
};

bool adds_to_gradients(const Action& action, const StageUnits& units) {
  if (action.type == ActionType::kBackwardInput) return action.part == units.fused_part;
  return action.type == ActionType::kBackward || action.type == ActionType::kBackwardWeight;
}

Formula formula(const Subject& subject, const Config& config) {
  const Precision precision = precision_of(config.training);
  const int64_t size = size_of(precision.compute), wide = size_of(precision.master);
  const bool masters = precision.master != precision.compute;
  const ZeroPolicy policy = zero_policy(config.parallel);
  const int64_t S = policy.shard;
  int64_t P = 0;
  GradientWalk walk{.padded = {}, .shards = S};
  for (const auto& [unit, numel] : subject.unit_numel) P += walk.padded[unit] = round_up(numel, 64 * S);
  Formula f{};
  f.parameters = size * (policy.parameters_resident ? P : masters ? 0 : P / S);
  f.gradients = wide * (policy.gradients_resident ? P : P / S);
  f.optimizer = (masters ? 3 : 2) * wide * P / S;
  int64_t gathered = 0, most_gathered = 0, most_full = 0;
  for (const Action& action : subject.list) {
    if (action.type == ActionType::kNorm) break;
    const StageUnits& units = subject.units[static_cast<size_t>(action.stage)];
    const UnitKey its(action.stage, action.unit);
    if (action.type == ActionType::kUnshard) gathered += walk.padded[its];
    if (action.type == ActionType::kReshard) gathered -= walk.padded[its];
    if (adds_to_gradients(action, units))
      for (const UnitRef& unit : units.units_of_part[static_cast<size_t>(action.part)])
        walk.add_to({unit.stage < 0 ? action.stage : unit.stage, unit.unit});
    if (action.type == ActionType::kReduceGrads) walk.reduce(its);
    if (action.type == ActionType::kWaitGrads) walk.wait(its);
    most_gathered = std::max(most_gathered, gathered);
    most_full = std::max(most_full, walk.full);
  }
  f.peak_parameters = f.parameters + (policy.parameters_resident ? 0 : size * most_gathered);
  f.peak_gradients = f.gradients + (policy.gradients_resident ? 0 : wide * most_full);
  return f;
}

std::vector<ParityLayout> layouts() {
  std::vector<ParityLayout> all;
  for (int zero = 0; zero <= 3; ++zero) {
    for (const int replicate : {1, 2}) {
      if (zero == 0 && replicate == 2) continue;
      ParityLayout layout;
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
        layout.reshard = Reshard::kAfterStep;
        layout.gradient_accumulation = GradientAccumulation::kFull;
        all.push_back(layout);
      }
    }
  }
  for (const auto& [schedule, virtual_stages] : {std::pair(ScheduleKind::kZbH1, 1),
                                                 {ScheduleKind::kZbH2, 1},
                                                 {ScheduleKind::kZbV, 2},
                                                 {ScheduleKind::kInterleaved1F1B, 2},
                                                 {ScheduleKind::kInterleaved1F1B, 1}}) {
    for (const int zero : {1, 2, 3}) {
      ParityLayout layout;
      layout.pipeline = 2;
      layout.data = zero == 1 ? 1 : 2;
      layout.zero = zero;
      layout.schedule = schedule;
      layout.virtual_stages = virtual_stages;
      layout.bucket_blocks = zero == 3 ? 2 : 1;
      layout.layers = zero == 3 ? 9 : 5;
      all.push_back(layout);
    }
  }
  // Stages without layers.
  for (const int zero : {0, 2, 3}) {
    all.push_back(ParityLayout{{.pipeline = 3, .data = 2, .zero = zero}}.with_layers(5, {0, 5, 0}));
    all.push_back(ParityLayout{{.tensor = 2, .pipeline = 2, .zero = zero, .sequence_parallel = true, .schedule = ScheduleKind::kZbH1}}.with_layers(
        5, zero == 2 ? std::vector<int64_t>{0, 5} : std::vector<int64_t>{5, 0}));
    all.push_back(
        ParityLayout{{.pipeline = 2, .data = 2, .zero = zero, .schedule = ScheduleKind::kZbV, .virtual_stages = 2}}.with_layers(5, {0, 3, 2, 0}));
    all.push_back(ParityLayout{{.pipeline = 2, .data = 2, .zero = zero, .schedule = ScheduleKind::kInterleaved1F1B, .virtual_stages = 2}}.with_layers(
        5, {0, 3, 2, 0}));
  }
  return all;
}

std::vector<std::pair<ParityLayout, std::string>> cases() {
  std::vector<std::pair<ParityLayout, std::string>> all;
  for (const ParityLayout& layout : layouts()) {
    all.emplace_back(layout, "fp32");
    all.emplace_back(layout, "bf16");
  }
  return all;
}

}  // namespace

TEST_CASE("memory counted on the meta device equals measured memory and the formulas") {
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

namespace {

/// Bytes that a block without recomputation and dropout keeps per micro-batch.
int64_t kept_by_block(const Config& config) {
  const ModelConfig& m = config.model;
  const int64_t streams = m.block_residual() == ResidualKind::kParallel ? 1 : 2, ups = m.preset().gated ? 2 : 1,
                post_norms = m.preset().norms == NormPlacement::kBoth ? 2 : 0,
                statistics_of_norms = m.preset().norm == NormKind::kLayer ? 4 : 2 + post_norms;
  const int64_t rows = config.training.micro_batch_size * config.training.sequence_length;
  // Kept, because recomputing takes a product: the residual stream before each branch, once if they are parallel; what a post-norm reads; queries, keys,
  // values; the attention's result; the MLP before its activation. Not kept, because recomputing takes one pass over memory: both normalised inputs and the
  // MLP after its activation.
  const int64_t values =
      (streams + post_norms) * m.hidden_size + (m.heads + 2 * *m.kv_heads) * *m.head_size + m.heads * *m.head_size + ups * *m.ffn_size;
  // Per row: the log-sum-exp of each head, 1 / deviation of each norm, and the mean of LayerNorm.
  const int64_t statistics = m.heads + statistics_of_norms;
  const DType compute = precision_of(config.training).compute;
  return rows * (values * size_of(compute) + statistics * size_of(accumulator_of(compute)));
}

}  // namespace

TEST_CASE("a block keeps from forward to backward only what is expensive to recompute") {
  const auto peak_with = [](Config config, int64_t layers) {
    config.model.layers = layers;
    config.parallel.layers_per_stage = std::vector<int64_t>{layers};
    SelfCommunicator world("world");
    return run_steps(world, config, Device::kMeta).memory.peak[static_cast<size_t>(MemoryCategory::kActivations)];
  };
  for (const ParityModel model : {ParityModel::kLlamaGrouped, ParityModel::kLlama, ParityModel::kGpt2}) {
    for (const char* precision : {"fp32", "bf16"}) {
      const Config config = parity_config(model, {}, precision);
      INFO(name_of(model) << " " << precision);
      CHECK(peak_with(config, 6) - peak_with(config, 5) == kept_by_block(config));
    }
  }
}

namespace {

/// Bytes that a LLaMA block without dropout keeps per micro-batch between I and W: what W reads, and buffers that cannot be freed separately.
int64_t kept_for_weights(const Config& config) {
  const ModelConfig& m = config.model;
  const int64_t rows = config.training.micro_batch_size * config.training.sequence_length;
  const int64_t query = m.heads * *m.head_size, packed = query + 2 * *m.kv_heads * *m.head_size;
  const int64_t inputs = 2 * m.hidden_size + query + *m.ffn_size;          // inputs of the four products
  const int64_t gradients = packed + 2 * *m.ffn_size + 2 * m.hidden_size;  // gradients of their outputs
  const int64_t norms = 4 * m.hidden_size;                                 // the residual stream before both, and the gradients of their outputs
  const int64_t statistics = 2;                                            // of the norms
  const DType compute = precision_of(config.training).compute;
  return rows * ((inputs + gradients + norms) * size_of(compute) + statistics * size_of(accumulator_of(compute)));
}

/// Peak bytes that the blocks of a rank keep.
int64_t most_kept_by_blocks(const Subject& subject, const Config& config) {
  const int64_t forward = kept_by_block(config), weights = kept_for_weights(config);
  int64_t kept = 0, most = 0;
  for (const Action& action : subject.list) {
    const bool embedding = action.stage == 0 && action.part == 0;
    if (!is_compute(action.type) || embedding || action.part == subject.units[static_cast<size_t>(action.stage)].fused_part) continue;
    if (action.type == ActionType::kForward) kept += forward;
    if (action.type == ActionType::kBackward) kept -= forward;
    if (action.type == ActionType::kBackwardInput) kept += weights - forward;
    if (action.type == ActionType::kBackwardWeight) kept -= weights;
    most = std::max(most, kept);
  }
  return most;
}

}  // namespace

TEST_CASE("a rank keeps what its schedule has in flight: per micro-batch the forward's tensors until I, then W's inputs until W") {
  for (const auto& [schedule, virtual_stages] : {std::pair(ScheduleKind::kGPipe, 1),
                                                 {ScheduleKind::k1F1B, 1},
                                                 {ScheduleKind::kInterleaved1F1B, 2},
                                                 {ScheduleKind::kInterleaved1F1B, 3},
                                                 {ScheduleKind::kZbH1, 1},
                                                 {ScheduleKind::kZbH2, 1},
                                                 {ScheduleKind::kZbV, 2}}) {
    for (int rank = 0; rank < 4; ++rank) {
      std::map<int, int64_t> peak, formula;
      int64_t kept = 0, in_flight = 0;
      for (const int blocks : {3, 4}) {
        ParityLayout layout;
        layout.pipeline = 4;
        layout.schedule = schedule;
        layout.virtual_stages = virtual_stages;
        layout.layers = 4 * virtual_stages * blocks;
        const Config config = parity_config(ParityModel::kLlama, layout, "fp32");
        NullCommunicator world(rank, 4, "world");
        const Subject subject = run_steps(world, config, Device::kMeta);
        peak[blocks] = subject.memory.at(subject.memory.peak, MemoryCategory::kActivations);
        formula[blocks] = most_kept_by_blocks(subject, config);
        kept = kept_by_block(config);
        in_flight = max_in_flight(subject.list);
      }
      INFO(name_of(schedule) << ", " << virtual_stages << " stages per rank, rank " << rank << ": " << in_flight << " in flight, a block keeps "
                             << kept);
      CHECK(peak[4] - peak[3] == formula[4] - formula[3]);
      if (!std::string(name_of(schedule)).starts_with("zb")) CHECK(peak[4] - peak[3] == in_flight * kept);
    }
  }
}

TEST_CASE("a memory table of some pipeline ranks shows their pipeline rank numbers") {
  CHECK(memory_table({RankMemory{}, RankMemory{}}).find("pipeline 1") != std::string::npos);
  const std::string table = memory_table({RankMemory{}}, {RankMemory{}}, 3);
  CHECK(table.find("pipeline 3") != std::string::npos);
  CHECK(table.find("measured 3") != std::string::npos);
  CHECK(table.find("pipeline 0") == std::string::npos);
}

TEST_CASE("no step after the second allocates system memory") {
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

namespace {

/// The steps of a forecast, with data: two steps, a save, an evaluation, one more step. With resilience.rebalance, data rank 0 has the most micro-batches.
RankMemory measure(Communicator& world, const Config& config, Device device) {
  Arena arena(device, true);
  Context ctx{device, &arena, 1, nullptr};
  Trainer trainer(ctx, world, config, true);
  if (config.resilience.rebalance == Rebalance::kMicroBatches) trainer.set_micro_batches(largest_split(config, 0));
  trainer.initialise();
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  for (int step = 0; step < 2; ++step) trainer.step(data, step, 1e-3);
  arena.set_phase(MemoryPhase::kSave);
  trainer.evaluate(data, 1);
  trainer.step(data, 2, 1e-3);
  return measured_memory(arena);
}

std::string text_of(const MemoryPeaks& peaks) {
  std::string text;
  for (const int64_t bytes : peaks.peak) text += concat(bytes, " ");
  return concat(text, "sum ", peaks.peak_total);
}

RankMemory without_workspace(RankMemory memory) {
  const auto clear = [](MemoryPeaks& peaks) { peaks.peak[static_cast<size_t>(MemoryCategory::kWorkspace)] = peaks.peak_total = 0; };
  clear(memory);
  for (MemoryPeaks& phase : memory.phases) clear(phase);
  return memory;
}

/// One line for the run and one per phase.
std::string text_of(const RankMemory& memory) {
  std::string text = text_of(static_cast<const MemoryPeaks&>(memory)) + "\n";
  for (size_t p = 0; p < kMemoryPhases; ++p) text += concat(name_of(static_cast<MemoryPhase>(p)), " ", text_of(memory.phases[p]), "\n");
  return text;
}

}  // namespace

TEST_CASE("a forecast equals measured memory in every category and phase, for random configurations") {
  std::mt19937_64 random(20240307);
  const char* const precisions[] = {"fp32", "bf16", "fp64", "fp16"};
  for (const Choice& choice : random_choices(20, 20240307)) {
    const auto& [model, layout] = case_of(choice);
    const char* const precision = precisions[random() % 4];
    const Config config = parity_config(model, layout, precision);
    const Device device = random() % 2 == 0 || std::string(precision) == "fp64" ? Device::kReference : Device::kCpu;
    std::vector<CommunicationRecord> records;
    std::vector<RankMemory> measured(static_cast<size_t>(layout.world()));
    RankOptions options;
    options.records = &records;
    run_ranks(
        layout.world(), [&](Communicator& world) { measured[static_cast<size_t>(world.rank())] = measure(world, config, device); }, options);
    const LoweredSchedule plans = lowered_schedule(config);
    for (int rank = 0; rank < layout.world(); ++rank) {
      INFO(name_of(model) << " " << layout.str() << " " << precision << (device == Device::kCpu ? " on the fast kernels" : "") << " rank " << rank);
      const RankMemory forecast = forecast_memory(config, rank, layout.world(), recompute_policy(config), plans);
      const RankMemory& real = measured[static_cast<size_t>(rank)];
      if (const MeshCoordinate at = coordinate_of(mesh_shape(config.parallel), rank); layout.rebalance && (at.replicate > 0 || at.shard > 0)) {
        // This rank has fewer micro-batches.
        if (device == Device::kReference) CHECK(forecast.peak_total >= real.peak_total);
        const MemoryPeaks most = without_workspace(forecast), needed = without_workspace(real);
        for (size_t c = 0; c < kMemoryCategories; ++c) CHECK(most.peak[c] >= needed.peak[c]);
        continue;
      }
      if (device == Device::kReference) {
        CHECK(text_of(forecast) == text_of(real));
        CHECK(forecast.arena_bytes == real.arena_bytes);
      } else {  // CPU kernels also allocate workspace, by thread count and instruction set
        CHECK(text_of(without_workspace(forecast)) == text_of(without_workspace(real)));
        CHECK(forecast.peak_total <= real.peak_total);
      }
      for (const MemoryPeaks& phase : forecast.phases) CHECK(phase.peak_total > 0);
      const CommunicationRecord& record = records[static_cast<size_t>(rank)];
      CHECK(3 * forecast.reduced_bytes ==
            Approx(record.entry("shard", "reduce_scatter").wire_bytes + record.entry("replicate", "all_reduce").wire_bytes).epsilon(1e-12));
    }
  }
}

}  // namespace trireme::test
