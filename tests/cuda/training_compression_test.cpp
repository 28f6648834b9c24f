// Training with compressed gradients on GPUs against CPUs: the same messages, errors that survive a rejected step, a resume and a change of the device,
// and steps of a captured graph.
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "tests/cuda/gpu_ranks.h"
#include "tests/cuda/training.h"
#include "tests/parity/run_state.h"
#include "tests/support/catch.h"
#include "tests/support/gpu.h"
#include "tests/support/run_files.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/reducer_state.h"
#include "trainer/loop/trainer.h"
#include "trainer/verify/ragged_dataset.h"

namespace trireme::test {
namespace {

/// Those that run on GPUs. power_sgd does not.
constexpr CompressionMethod kMethods[] = {CompressionMethod::kInt8, CompressionMethod::kInt4, CompressionMethod::kSign, CompressionMethod::kTopK,
                                          CompressionMethod::kRandomK};

struct CompressionCase {
  ParityModel model;
  const char* layout;
};
/// Sums over replicas, over shards and over both; parts of matrices, an embedding with a copy on the last stage.
constexpr CompressionCase kCompressed[] = {
    {ParityModel::kGpt2, "dp2z0"}, {ParityModel::kLlama, "dp4rep2z3"}, {ParityModel::kLlamaGrouped, "tp2pp2dp2z2-sp"}};

Config compressed(const CompressionCase& c, CompressionMethod method) {
  ParityLayout layout;
  static_cast<Layout&>(layout) = parse_layout(c.layout);
  layout.gradient_accumulation = GradientAccumulation::kFull;
  layout.layers = 3;
  Config config = parity_config(c.model, layout, "fp32");
  config.training.global_batch_size = 2 * layout.data;  // a simulated GPU takes its time for every micro-batch, and two are added up
  config.training.compression.method = method;
  config.training.compression.block = 32;
  config.training.compression.ratio = 0.1;
  return config;
}

/// What a rank keeps between steps, as bytes.
std::vector<char> kept(Trainer& trainer) {
  std::vector<char> all;
  for (const StateTensor& tensor : reducer_tensors(trainer)) {
    const auto* const bytes = static_cast<const char*>(tensor.data);
    all.insert(all.end(), bytes, bytes + tensor.box.numel() * size_of(tensor.dtype));
  }
  return all;
}

RaggedDataset data_of(const Config& config) { return {29, config.training.sequence_length, *config.model.vocab_size}; }

std::vector<double> compressed_steps(Trainer& trainer, int first, int last) {
  const RaggedDataset data = data_of(trainer.config());
  std::vector<double> all;
  for (int step = first; step < last; ++step) {
    const StepResult result = trainer.step(data, step, 3e-3);
    all.insert(all.end(), {result.loss, result.grad_norm});
  }
  return all;
}

/// All methods where the world is small, else one of codes and one of elements.
std::vector<CompressionMethod> methods_of(const CompressionCase& c) {
  const auto world = world_of(compressed(c, CompressionMethod::kInt8));
  if (world > 4) return {CompressionMethod::kInt4, CompressionMethod::kTopK};
  if (world > 2) return {CompressionMethod::kInt8, CompressionMethod::kRandomK};
  return {std::begin(kMethods), std::end(kMethods)};
}

bool has_gpus_for(const CompressionCase& c) { return testing::has_gpus(world_of(compressed(c, CompressionMethod::kInt8)), c.layout); }

}  // namespace

TEST_CASE("compression on GPUs trains as on the CPU, with every method", "[gpus2]") {
  uint64_t seed = 0;
  for (const CompressionCase& c : kCompressed) {
    if (!has_gpus_for(c)) continue;
    const RunRecord plain = train_on_threads(compressed(c, CompressionMethod::kNone), 1, Device::kCpu);
    for (const CompressionMethod method : methods_of(c)) {
      INFO(c.layout << ", " << kNames<CompressionMethod>[static_cast<size_t>(method)]);
      const Config config = compressed(c, method);
      testing::set_schedule(seed++);
      const RunRecord on_cpu = train_on_threads(config, 2, Device::kCpu), on_gpus = train_on_gpus(config, 2);
      // The last bits of gradients differ between the kernels of CPU and GPU. So an element in thousands has the neighbouring code, and with AdamW its
      // weight takes another step. What compression itself changes is far more.
      CHECK(gradient_errors(on_cpu, on_gpus).mean < 0.1 * gradient_errors(plain, on_cpu).mean);
      for (size_t step = 0; step < on_cpu.loss.size(); ++step) CHECK(std::abs(on_gpus.loss[step] - on_cpu.loss[step]) < 1e-3 * on_cpu.loss[step]);
      if (method == CompressionMethod::kRandomK) CHECK(difference(on_cpu, on_gpus, 1e-4) == "");  // which has no codes
    }
  }
}

TEST_CASE("compression on GPUs: ranks that share a GPU through host memory have the same bits", "[gpus2]") {
  for (const CompressionMethod method : {CompressionMethod::kInt8, CompressionMethod::kTopK}) {
    const Config config = compressed(kCompressed[0], method);
    if (!has_gpus_for(kCompressed[0])) continue;
    CHECK(train_on_gpus(config, 2, 2) == train_on_gpus(config, 2));
  }
}

/// With every `stride`-th method of each layout. With two, all methods but int4 are among them.
static void check_resumes(size_t stride) {
  for (size_t number = 0; const CompressionCase& c : kCompressed) {
    if (!has_gpus_for(c)) continue;
    const std::vector<CompressionMethod> methods = methods_of(c);
    for (size_t i = ++number / 2 % stride; i < methods.size(); i += stride) {
      const CompressionMethod method = methods[i];
      INFO(c.layout << ", " << kNames<CompressionMethod>[static_cast<size_t>(method)]);
      const Config config = compressed(c, method);
      const TemporaryDirectory directory;
      std::vector<std::vector<char>> saved(static_cast<size_t>(world_of(config)));
      run_gpu_ranks(world_of(config), kNccl, [&](Communicator& world, Context& ctx) {
        std::vector<double> through;
        {
          Trainer first(ctx, world, config, true);
          first.initialise();
          compressed_steps(first, 0, 1);
          save(first, directory.path, 1);
          saved[static_cast<size_t>(world.rank())] = kept(first);
          through = compressed_steps(first, 1, 3);
        }
        Trainer second(ctx, world, config, true);
        CheckpointReader reader(directory.path / checkpoint_name(1));
        TRIREME_CHECK(load_state(second, reader).empty(), "the same layout reads its own errors");
        TRIREME_CHECK(compressed_steps(second, 1, 3) == through, c.layout, ": training differs after a resume");
      });
      on_ranks(config, [&](Trainer& trainer) {
        CheckpointReader reader(directory.path / checkpoint_name(1));
        TRIREME_CHECK(load_state(trainer, reader).empty(), "the same layout reads its own errors");
        TRIREME_CHECK(kept(trainer) == saved[static_cast<size_t>(trainer.mesh().world.rank())], "the errors on the CPU are not those of the GPU");
      });
    }
  }
}

TEST_CASE("compression on GPUs resumes bit for bit, and a CPU takes over the errors", "[gpus2]") { check_resumes(2); }

TEST_CASE("compression on GPUs resumes bit for bit with every method", "[slow]") { check_resumes(1); }

/// With a method of codes and one of elements, each in every layout, or in turn.
static void check_rejected_step(bool in_turn) {
  for (size_t number = 0; const CompressionCase& c : kCompressed) {
    const bool first = number++ % 2 == 0;
    if (!has_gpus_for(c)) continue;
    for (const CompressionMethod method : {CompressionMethod::kInt8, CompressionMethod::kTopK}) {
      if (in_turn && (method == CompressionMethod::kInt8) != first) continue;
      INFO(c.layout << ", " << kNames<CompressionMethod>[static_cast<size_t>(method)]);
      const Config config = compressed(c, method);
      run_gpu_ranks(world_of(config), kNccl, [&](Communicator& world, Context& ctx) {
        Trainer trainer(ctx, world, config, true);
        trainer.initialise();
        compressed_steps(trainer, 0, 1);
        const std::vector<char> before = kept(trainer);
        const StepResult rejected = trainer.step(data_of(config), 1, 3e-3, {.loss = 0});
        TRIREME_CHECK(!rejected.accepted && kept(trainer) == before, "a rejected step has changed the errors");
        compressed_steps(trainer, 2, 3);
        TRIREME_CHECK(before.empty() || kept(trainer) != before, "an accepted step has not changed the errors");
      });
    }
  }
}

TEST_CASE("compression on GPUs: a rejected step leaves the errors as they were", "[gpus2]") { check_rejected_step(true); }

TEST_CASE("compression on GPUs: a rejected step leaves the errors as they were, with two methods in every layout", "[slow]") {
  check_rejected_step(false);
}

TEST_CASE("compression on GPUs: steps of a captured graph have the bits of queued ones, with a warm-up too", "[gpus2]") {
  const std::tuple<CompressionMethod, int, CompressionCase> cases[] = {{CompressionMethod::kInt8, 0, kCompressed[0]},
                                                                       {CompressionMethod::kSign, 3, kCompressed[0]},
                                                                       {CompressionMethod::kOneBitAdam, 2, kCompressed[1]},
                                                                       {CompressionMethod::kTopK, 0, kCompressed[1]}};  // and steps of the warm-up
  for (const auto& [method, warmup, c] : cases) {
    if (!has_gpus_for(c)) continue;
    INFO(kNames<CompressionMethod>[static_cast<size_t>(method)] << ", " << warmup << " steps of warm-up");
    Config config = compressed(c, method);
    config.training.compression.warmup_steps = warmup;
    const int steps = 4 + warmup;  // two queued, one captured, one launched from the graph
    const RunRecord queued = train_on_gpus(config, steps);
    config.kernels.cuda_graph = true;
    testing::for_each_schedule(1, [&] { CHECK(train_on_gpus(config, steps) == queued); });
  }
}

#ifndef TRIREME_REAL_GPU  // which has no schedule to choose
TEST_CASE("compression on GPUs: every stream schedule gives the same bits") {
  for (const CompressionMethod method : {CompressionMethod::kInt4, CompressionMethod::kTopK}) {
    const Config config = compressed(kCompressed[1], method);
    std::optional<RunRecord> first;
    testing::for_each_schedule(3, [&] {
      const RunRecord record = train_on_gpus(config, 2);
      if (!first) first = record;
      CHECK(record == *first);
    });
  }
}
#endif

TEST_CASE("compression on GPUs takes the memory that is forecast", "[gpus2]") {
  for (const CompressionCase& c : {kCompressed[0], kCompressed[1]}) {
    if (!has_gpus_for(c)) continue;
    for (const CompressionMethod method : {CompressionMethod::kInt8, CompressionMethod::kTopK}) {
      INFO(c.layout << ", " << kNames<CompressionMethod>[static_cast<size_t>(method)]);
      Config config = compressed(c, method);
      config.run.device = DeviceType::kCuda;
      std::vector<RankMemory> measured(static_cast<size_t>(world_of(config)));
      run_gpu_ranks(world_of(config), kNccl, [&](Communicator& world, Context& ctx) {
        Trainer trainer(ctx, world, config, true);
        trainer.initialise();
        compressed_steps(trainer, 0, 2);
        measured[static_cast<size_t>(world.rank())] = measured_memory(*ctx.arena);
      });
      for (int rank = 0; rank < world_of(config); ++rank) {
        const RankMemory forecast = forecast_memory(config, rank, world_of(config)), &real = measured[static_cast<size_t>(rank)];
        for (size_t category = 0; category < kMemoryCategories; ++category)
          for (const MemoryPhase phase : {MemoryPhase::kForward, MemoryPhase::kBackward, MemoryPhase::kOptimizer}) {
            INFO("rank " << rank << ", " << name_of(static_cast<MemoryCategory>(category)));
            CHECK(forecast.phases[static_cast<size_t>(phase)].peak[category] == real.phases[static_cast<size_t>(phase)].peak[category]);
          }
      }
    }
  }
}

}  // namespace trireme::test
