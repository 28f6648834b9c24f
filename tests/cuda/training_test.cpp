// Compares training on GPUs with training on the CPU: the real host code, kernels and communicators, on the simulated machine under adversarial
// stream schedules, and in test_cuda_gpu on real GPUs. A tag [gpusN] says how many GPUs a test needs; layouts that need more are left out with a warning.
#include "tests/cuda/training.h"

#include <bit>
#include <cmath>
#include <filesystem>
#include <map>
#include <optional>
#include <tuple>

#include "tests/cuda/gpu_ranks.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/run_files.h"
#include "tests/support/thread_ranks.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/trainer.h"
#include "trainer/verify/ragged_dataset.h"
#ifndef TRIREME_REAL_GPU
#include "tests/cuda_sim/cublas_lt.h"
#endif

namespace trireme::test {
namespace {

constexpr int kSteps = 2;  // the second one has the weights and the moments of the first
// In fp32, GPU and CPU kernels differ in summation order; three steps amplify 6e-8 to 1e-5 at worst.
constexpr double kSingleTolerance = 1e-4;

constexpr ParityModel kModels[] = {ParityModel::kLlamaGrouped, ParityModel::kLlama,   ParityModel::kGpt2,
                                   ParityModel::kGpt2Dropout,  ParityModel::kGptNeoX, ParityModel::kGemma3};

struct LayoutCase {
  ParityModel model;
  ParityLayout layout;
};

/// A model of three blocks, or five for more stages, so that stages are uneven. A simulated GPU takes its time for every micro-batch, so a data rank has
/// two of them, or two for each stage of its pipeline.
Config config_of(const LayoutCase& c, const std::string& precision) {
  ParityLayout layout = c.layout;
  layout.layers = layout.stages() > 2 ? 5 : 3;
  Config config = parity_config(c.model, layout, precision);
  const int64_t micro_batches = layout.pipeline > 1 ? 2 * layout.pipeline : 2;
  config.training.global_batch_size = std::min<int64_t>(12, layout.data * layout.micro_batch * micro_batches);
  return config;
}

/// The same run on one rank of the CPU.
const RunRecord& on_cpu(const LayoutCase& c, const std::string& precision) {
  const Config config = config_of(c, precision);
  static std::map<std::tuple<ParityModel, std::string, int64_t, int64_t>, RunRecord> records;
  auto& record = records[{c.model, precision, config.model.layers, config.training.global_batch_size}];
  if (!record.loss.empty()) return record;
  ParityLayout one;
  one.layers = static_cast<int>(config.model.layers);
  Config alone = parity_config(c.model, one, precision);
  alone.training.global_batch_size = config.training.global_batch_size;
  const bool exact = precision == "fp64";
  return record = train_on_threads(alone, exact ? 1 : kSteps, exact ? Device::kReference : Device::kCpu);
}

/// Twelve layouts that together cover every axis, ZeRO stage and kind of accumulation, both schedules, hybrid sharding and prefetch.
std::vector<LayoutCase> twelve_layouts() {
  std::vector<LayoutCase> cases;
  const auto add = [&](ParityModel model, int tensor, int pipeline, int data, int zero, const auto& change) {
    ParityLayout layout;
    layout.tensor = tensor;
    layout.pipeline = pipeline;
    layout.data = data;
    layout.zero = zero;
    change(layout);
    cases.push_back({model, layout});
  };
  using M = ParityModel;
  add(M::kLlama, 2, 1, 1, 0, [](ParityLayout&) {});
  add(M::kGpt2, 2, 1, 1, 0, [](ParityLayout& l) { l.sequence_parallel = true; });
  add(M::kLlamaGrouped, 4, 1, 1, 0, [](ParityLayout& l) { l.sequence_parallel = true; });
  add(M::kGpt2, 1, 2, 1, 0, [](ParityLayout& l) { l.micro_batch = 2; });
  add(M::kLlama, 1, 4, 1, 0, [](ParityLayout& l) { l.schedule = ScheduleKind::kGPipe; });
  add(M::kGpt2Dropout, 1, 1, 2, 1, [](ParityLayout&) {});
  add(M::kGpt2, 1, 1, 3, 2, [](ParityLayout&) {});
  add(M::kLlamaGrouped, 1, 1, 4, 3, [](ParityLayout& l) { l.prefetch = 2; });
  add(M::kLlama, 1, 1, 4, 3, [](ParityLayout& l) { l.replicate = 2, l.reshard = Reshard::kAfterStep; });
  add(M::kLlamaGrouped, 2, 2, 1, 0, [](ParityLayout& l) { l.sequence_parallel = true, l.micro_batch = 3; });
  add(M::kGpt2, 1, 2, 2, 3, [](ParityLayout& l) { l.gradient_accumulation = GradientAccumulation::kFull, l.micro_batch = 2; });
  add(M::kLlamaGrouped, 2, 2, 2, 3, [](ParityLayout& l) { l.sequence_parallel = true; });
  return cases;
}

/// Further pipeline features: schedules with several stages per rank and with split backward, recomputation, buckets.
std::vector<LayoutCase> pipelines() {
  const auto layout = [](int tensor, int pipeline, int data, int zero, ScheduleKind schedule, int virtual_stages, RecomputeMode recompute) {
    return ParityLayout{{.tensor = tensor,
                         .pipeline = pipeline,
                         .data = data,
                         .zero = zero,
                         .sequence_parallel = tensor > 1,
                         .schedule = schedule,
                         .virtual_stages = virtual_stages,
                         .recompute = recompute}};
  };
  using M = ParityModel;
  std::vector<LayoutCase> cases = {
      {M::kLlama, layout(1, 2, 2, 3, ScheduleKind::kInterleaved1F1B, 2, RecomputeMode::kNone)},
      {M::kGpt2Dropout, layout(2, 2, 1, 0, ScheduleKind::kZbH1, 1, RecomputeMode::kFull)},
      {M::kLlamaGrouped, layout(1, 2, 2, 3, ScheduleKind::kZbV, 2, RecomputeMode::kSelective)},
      {M::kGpt2Dropout, layout(1, 2, 2, 2, ScheduleKind::kZbH2, 1, RecomputeMode::kSelective)},
      {M::kLlamaGrouped, layout(2, 2, 1, 0, ScheduleKind::kInterleaved1F1B, 2, RecomputeMode::kFull)},
      {M::kGpt2, layout(2, 1, 2, 3, ScheduleKind::k1F1B, 1, RecomputeMode::kFull)},
  };
  for (size_t i = 0; i < cases.size(); i += 2) cases[i].layout.bucket_blocks = 2;
  return cases;
}

/// True if this machine has a GPU for each rank of the layout.
bool fits(const ParityLayout& layout) { return testing::has_gpus(layout.world(), layout.str()); }

}  // namespace

namespace {
/// Calls body(model) for each model: the n-th one under the n-th stream schedule, or under `schedules` of them.
template <class Body>
void for_each_model(int schedules, const Body& body) {
  uint64_t seed = 0;
  for (const ParityModel model : kModels) {
    INFO(name_of(model));
    if (schedules > 1) {
      testing::for_each_schedule(schedules, [&] { body(model); });
    } else {
      testing::set_schedule(seed++);
      body(model);
    }
  }
}

void check_one_gpu_in_fp32(int schedules) {
  for_each_model(schedules, [](ParityModel model) {
    const LayoutCase c{model, {}};
    CHECK(difference(on_cpu(c, "fp32"), train_on_gpus(config_of(c, "fp32"), kSteps), kSingleTolerance) == "");
  });
}

void check_half_precision_on_one_gpu(int schedules) {
  for (const auto& [name, of_loss] : {std::pair{"bf16", 1e-2}, {"fp16", 1.25e-3}}) {
    const std::string precision = name;
    INFO(precision);
    for_each_model(schedules, [&, of_loss = of_loss](ParityModel model) {
      const LayoutCase c{model, {}};
      const double unit = gradient_error(on_cpu(c, "fp64"), on_cpu(c, precision));
      const RunRecord record = train_on_gpus(config_of(c, precision), 1);
      CHECK(gradient_error(on_cpu(c, "fp64"), record) < 2 * unit);
      CHECK(std::abs(record.loss[0] - on_cpu(c, "fp64").loss[0]) < of_loss * record.loss[0]);
    });
  }
}
}  // namespace

TEST_CASE("training on one GPU matches the CPU in fp32") { check_one_gpu_in_fp32(1); }

TEST_CASE("half-precision gradients on one GPU are as accurate as on the CPU") { check_half_precision_on_one_gpu(1); }

TEST_CASE("training on one GPU matches the CPU in every precision under three stream schedules", "[slow]") {
  check_one_gpu_in_fp32(3);
  check_half_precision_on_one_gpu(3);
}

#ifndef TRIREME_REAL_GPU
/// The runs with and without graphs have a stream schedule of their own each, or the same `schedules`.
static void check_overflows(int schedules) {
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 3;
  Config config = config_of({ParityModel::kLlama, layout}, "fp16");
  config.training.loss_scale = {.initial = 1 << 20, .growth_interval = 2};
  const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size);
  // For each step, the exponent of the loss scale and whether the step was accepted: "20- 19- 18+ 18+ 19- 18+". The last loss reflects the weights.
  const auto run = [&](Trainer& trainer) {
    trainer.initialise();
    std::string scales;
    double loss = 0;
    for (int step = 0; step < 10; ++step) {
      const StepResult result = trainer.step(data, step, 1e-3);
      TRIREME_CHECK(std::isfinite(result.loss) && result.overflow == !result.accepted, "step ", step);
      scales += std::to_string(std::countr_zero(static_cast<uint64_t>(*result.loss_scale))) + (result.accepted ? "+ " : "- ");
      loss = result.loss;
    }
    return std::pair(scales, loss);
  };
  std::pair<std::string, double> on_cpu, queued;
  run_ranks(layout.world(), [&](Communicator& world) {
    Arena arena(Device::kCpu, true);
    Context ctx{Device::kCpu, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    const auto result = run(trainer);
    if (world.rank() == 0) on_cpu = result;
  });
  INFO(on_cpu.first);
  // Equal overflows can be expected only on the simulated machine: its products sum in the CPU's order.
  REQUIRE(on_cpu.first.starts_with("20- "));
  REQUIRE(on_cpu.first.find('-', on_cpu.first.find('+')) != std::string::npos);  // another overflow after the scale has grown
  for (const bool graph : {false, true}) {
    config.kernels.cuda_graph = graph;
    testing::for_each_schedule(schedules, [&] {
      if (schedules == 1) testing::set_schedule(graph ? 1 : 0);
      run_gpu_ranks(layout.world(), kNccl, [&](Communicator& world, Context& ctx) {
        Trainer trainer(ctx, world, config, true);
        const auto result = run(trainer);
        if (world.rank() != 0) return;
        CHECK(result.first == on_cpu.first);
        CHECK(std::abs(result.second - on_cpu.second) < 2e-3 * on_cpu.second);
        if (queued.first.empty()) queued = result;
        CHECK(result == queued);
      });
    });
  }
}

TEST_CASE("fp16 overflows halve the loss scale on GPUs as on the CPU, with and without graphs") { check_overflows(1); }

TEST_CASE("fp16 overflows halve the loss scale on GPUs as on the CPU, with and without graphs, under four stream schedules", "[slow]") {
  check_overflows(4);
}
#endif

namespace {
void check_against_cpu(const LayoutCase& c) {
  if (!fits(c.layout)) return;
  INFO(name_of(c.model) << " " << c.layout.str());
  CHECK(difference(on_cpu(c, "fp32"), train_on_gpus(config_of(c, "fp32"), kSteps), kSingleTolerance) == "");
}
}  // namespace

TEST_CASE("twelve layouts with one GPU per rank match the CPU, each under a stream schedule of its own", "[gpus2]") {
  uint64_t seed = 0;
  for (const LayoutCase& c : twelve_layouts()) {
    testing::set_schedule(seed++);
    check_against_cpu(c);
  }
}

TEST_CASE("a layout whose products use timed algorithms matches the CPU, and a run with their file gives the same bits", "[gpus2]") {
  const LayoutCase c = twelve_layouts().front();
  if (!fits(c.layout)) return;
  const TemporaryDirectory directory;
  Config config = config_of(c, "fp32");
  config.kernels.tuning_file = directory.path / "products.json";
  testing::set_schedule(0);
  const RunRecord first = train_on_gpus(config, kSteps);
  CHECK(difference(on_cpu(c, "fp32"), first, kSingleTolerance) == "");
  CHECK(std::filesystem::exists(directory.path / "products.json"));
  testing::set_schedule(1);
  CHECK(train_on_gpus(config, kSteps) == first);
}

TEST_CASE("twelve layouts with one GPU per rank match the CPU under 36 stream schedules", "[slow]") {
  for (const LayoutCase& c : twelve_layouts()) testing::for_each_schedule(3, [&] { check_against_cpu(c); });
}

TEST_CASE("pipelines with virtual stages, split backward, recomputation and buckets match the CPU", "[gpus4]") {
  uint64_t seed = 0;
  for (const LayoutCase& c : pipelines()) {
    testing::set_schedule(seed++);
    check_against_cpu(c);
  }
}

TEST_CASE("pipelines with virtual stages, split backward, recomputation and buckets match the CPU under 18 stream schedules", "[slow]") {
  for (const LayoutCase& c : pipelines()) testing::for_each_schedule(3, [&] { check_against_cpu(c); });
}

TEST_CASE("recomputation on GPUs is bit-identical to saving activations", "[gpus4]") {
  for (LayoutCase c : pipelines()) {
    if (c.layout.recompute == RecomputeMode::kNone || !fits(c.layout)) continue;
    INFO(name_of(c.model) << " " << c.layout.str());
    const RunRecord record = train_on_gpus(config_of(c, "bf16"), 1);
    c.layout.recompute = RecomputeMode::kNone;
    testing::for_each_schedule(1, [&] { CHECK(train_on_gpus(config_of(c, "bf16"), 1) == record); });
  }
}

namespace {
void check_gradients(const LayoutCase& c, const std::string& precision) {
  if (!fits(c.layout)) return;
  INFO(name_of(c.model) << " " << c.layout.str() << " " << precision);
  const double unit = gradient_error(on_cpu(c, "fp64"), on_cpu(c, precision));
  CHECK(gradient_error(on_cpu(c, "fp64"), train_on_gpus(config_of(c, precision), 1)) < 2 * unit);
}
}  // namespace

TEST_CASE("half-precision gradients of the twelve layouts, bf16 and fp16 in turn, are as accurate as on the CPU", "[gpus2]") {
  uint64_t seed = 0;
  for (const LayoutCase& c : twelve_layouts()) {
    testing::set_schedule(seed);
    check_gradients(c, seed++ % 2 == 0 ? "bf16" : "fp16");
  }
}

TEST_CASE("half-precision gradients of the twelve layouts, each in bf16 and fp16, are as accurate as on the CPU", "[slow]") {
  const std::string precision = GENERATE("bf16", "fp16");
  for (const LayoutCase& c : twelve_layouts()) testing::for_each_schedule(1, [&] { check_gradients(c, precision); });
}

TEST_CASE("bf16 gradient reduction between GPUs rounds once per rank", "[gpus4]") {
  ParityLayout layout;
  layout.data = 4;
  if (!fits(layout)) return;
  for (const auto& [zero, replicate] : {std::pair{0, 1}, std::pair{1, 2}, std::pair{3, 2}}) {
    layout.zero = zero;
    layout.replicate = replicate;
    const LayoutCase c{ParityModel::kGpt2, layout};
    Config config = config_of(c, "fp32");
    config.training.reduce_dtype = ReduceDtype::kBf16;
    INFO(layout.str());
    testing::for_each_schedule(2, [&] {
      const double error = gradient_error(on_cpu(c, "fp32"), train_on_gpus(config, 1));
      CHECK(error > 1e-4);  // the reduction really is in bf16
      CHECK(error < 1e-2);  // four roundings of 2^-9, and those of their sums
    });
  }
}

TEST_CASE("steps launched as a captured graph are bit-identical to queued steps") {
  ParityLayout layout;
  layout.data = layout.tensor = 2;
  layout.zero = 3;
  for (const auto& [model, layout_of] : {std::pair{ParityModel::kLlamaGrouped, ParityLayout{}}, std::pair{ParityModel::kLlama, layout}}) {
    if (!fits(layout_of)) continue;
    Config config = config_of({model, layout_of}, "bf16");
    INFO(name_of(model) << " " << layout_of.str());
    constexpr int kGraphSteps = 5;  // two queued, one captured, two launched from the graph
    const RunRecord queued = train_on_gpus(config, kGraphSteps);
    config.kernels.cuda_graph = true;
    testing::for_each_schedule(1, [&] { CHECK(train_on_gpus(config, kGraphSteps) == queued); });
  }
}

TEST_CASE("islands on GPUs take the outer steps of those on the CPU, and a captured graph leaves the outer steps out", "[gpus2]") {
  ParityLayout layout;
  layout.islands = 2;
  layout.fragments = 2;
  for (const int64_t delay : {0, 1}) {
    if (!fits(layout)) continue;
    Config config = config_of({ParityModel::kLlama, layout}, "fp32");
    config.training.global_batch_size = 4;
    config.training.local.steps = 4;
    config.training.local.delay = delay;
    constexpr int kIslandSteps = 8;  // two queued, one captured, five launched from the graph, with outer steps among them
    INFO("delay " << delay);
    const RunRecord queued = train_on_gpus(config, kIslandSteps);
    CHECK(difference(train_on_threads(config, kIslandSteps, Device::kCpu), queued, kSingleTolerance) == "");
    config.kernels.cuda_graph = true;
    testing::for_each_schedule(1, [&] { CHECK(train_on_gpus(config, kIslandSteps) == queued); });
  }
}

TEST_CASE("a step uses no tensor after its return or beyond its end", "[gpus4]") {
  ParityLayout sharded, pipeline;
  sharded.tensor = sharded.data = pipeline.tensor = pipeline.pipeline = 2;
  sharded.zero = 3;
  sharded.sequence_parallel = true;
  const LayoutCase one{ParityModel::kGpt2Dropout, {}}, shards{ParityModel::kLlamaGrouped, sharded}, stages{ParityModel::kGpt2, pipeline};
  // Kernels depend on the precision, buffers between ranks on the layout.
  for (const auto& [c, precision] : {std::pair{one, "fp32"}, {one, "bf16"}, {one, "fp16"}, {shards, "bf16"}, {stages, "fp32"}}) {
    if (!fits(c.layout)) continue;
    const Config config = config_of(c, precision);
    INFO(name_of(c.model) << " " << c.layout.str() << " " << precision);
    const RunRecord cached = train_on_gpus(config, 1);
    testing::for_each_schedule(1, [&] { CHECK(difference(cached, train_on_gpus(config, 1, 1, /*caching=*/false), 0) == ""); });
    CHECK(testing::gpu_errors() == "");
  }
}

#ifndef TRIREME_REAL_GPU  // which has no schedule to choose
TEST_CASE("every stream schedule gives the same bits") {
  ParityLayout layout;
  layout.tensor = layout.data = 2;
  layout.zero = 3;
  const Config config = config_of({ParityModel::kLlama, layout}, "bf16");
  std::optional<RunRecord> first;
  testing::for_each_schedule(4, [&] {
    const RunRecord record = train_on_gpus(config, 2);
    if (!first) first = record;
    CHECK(record == *first);
  });
}

TEST_CASE("training leaves multiprocessors free only where communication overlaps, with and without a graph") {
  ParityLayout layout;
  layout.data = 2;
  layout.zero = 3;
  const LayoutCase c{ParityModel::kLlama, layout};
  Config config = config_of(c, "fp32");
  config.parallel.communication_sms = 2;
  // Whether products of a run had a target.
  const auto limits = [&](RunRecord& record, int steps) {
    const int64_t before = cuda_sim::cublas_lt_statistics().limited;
    record = train_on_gpus(config, steps);
    return cuda_sim::cublas_lt_statistics().limited > before;
  };
  constexpr int kGraphSteps = 3;  // the last one is captured
  RunRecord as_on_cpu, queued, captured, other;
  CHECK(limits(as_on_cpu, kSteps));
  CHECK(difference(on_cpu(c, "fp32"), as_on_cpu, kSingleTolerance) == "");
  CHECK(limits(queued, kGraphSteps));
  config.kernels.cuda_graph = true;
  CHECK(limits(captured, kGraphSteps));
  CHECK(captured == queued);
  config.kernels.cuda_graph = config.parallel.overlap = false;
  CHECK_FALSE(limits(other, 1));
}
#endif

// The workspace of attention's backward is the same whatever the documents in a micro-batch are.
TEST_CASE("a memory forecast equals the measured memory of a GPU, with documents too") {
  for (const auto& [precision, documents] : {std::pair{"bf16", false}, {"bf16", true}, {"fp32", true}}) {
    Config config = parity_config(ParityModel::kLlama, {}, precision);
    config.data.document_mask = documents;
    config.training.micro_batch_size = 2;  // whose documents differ in length
    config.model.hidden_size = 64;
    config.model.heads = 2;
    config.model.kv_heads = 2;
    config.model.head_size = 32;
    config.run.device = DeviceType::kCuda;
    RankMemory measured;
    run_gpu_ranks(1, {true, 1}, [&](Communicator& world, Context& ctx) {
      Trainer trainer(ctx, world, config, true);
      trainer.initialise();
      const RaggedDataset data(29, config.training.sequence_length, *config.model.vocab_size, true, documents);
      for (int step = 0; step < 2; ++step) trainer.step(data, step, 1e-3);
      measured = measured_memory(*ctx.arena);
    });
    const RankMemory forecast = forecast_memory(config, 0, 1);
    for (size_t c = 0; c < kMemoryCategories; ++c) {
      INFO(precision << (documents ? ", documents, " : ", ") << name_of(static_cast<MemoryCategory>(c)));
      for (const MemoryPhase phase : {MemoryPhase::kForward, MemoryPhase::kBackward, MemoryPhase::kOptimizer})
        CHECK(forecast.phases[static_cast<size_t>(phase)].peak[c] == measured.phases[static_cast<size_t>(phase)].peak[c]);
    }
    CHECK(forecast.arena_bytes >= measured.arena_bytes);
    Config on_cpu = config;
    on_cpu.run.device = DeviceType::kCpu;
    const auto workspace = static_cast<size_t>(MemoryCategory::kWorkspace);
    CHECK(forecast_memory(on_cpu, 0, 1).peak[workspace] < forecast.peak[workspace]);
  }
}

TEST_CASE("ranks that share a GPU through host memory match the CPU") {
  for (const LayoutCase& c : twelve_layouts()) {
    if (c.layout.world() != 4 && c.layout.world() != 8) continue;
    INFO(name_of(c.model) << " " << c.layout.str());
    testing::for_each_schedule(1, [&] {
      const RunRecord record = train_on_gpus(config_of(c, "fp32"), kSteps, c.layout.world());
      CHECK(difference(on_cpu(c, "fp32"), record, kSingleTolerance) == "");
    });
  }
}

}  // namespace trireme::test
