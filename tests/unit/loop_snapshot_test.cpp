// Tables and traces of the training loop, whole, for several ranks and steps.
#include <algorithm>
#include <mutex>
#include <thread>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/scratch.h"
#include "tests/support/snapshot.h"
#include "tests/support/thread_ranks.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/attention_kernels.h"
#include "trainer/loop/memory_table.h"
#include "trainer/loop/plain_products.h"
#include "trainer/loop/recompute.h"
#include "trainer/loop/trace.h"
#include "trainer/machine/environment.h"
#include "trainer/resilience/replica_check.h"

namespace trireme::test {
namespace {

/// Memory of a pipeline rank whose categories, phases and peak are all different; the peak is in `phase`.
RankMemory varied_memory(int64_t unit, size_t phase) {
  RankMemory memory;
  for (size_t c = 0; c < kMemoryCategories; ++c) memory.peak_total += memory.peak[c] = unit * static_cast<int64_t>(c * c + 1);
  for (size_t p = 0; p < kMemoryPhases; ++p) {
    memory.phases[p].peak = memory.peak;
    memory.phases[p].peak_total = p == phase ? memory.peak_total : memory.peak_total / static_cast<int64_t>(p + 2);
  }
  return memory;
}

}  // namespace

TEST_CASE("snapshot: loop: memory of more pipeline ranks than a table has columns") {
  std::vector<RankMemory> forecast, measured;
  for (const int64_t kibibytes : {900, 3, 70'000, 5'000'000, 2000, 90, 800, 700, 600, 1000}) {
    forecast.push_back(varied_memory(kibibytes << 10, forecast.size() % kMemoryPhases));
    measured.push_back(varied_memory((kibibytes << 10) * 3 / 2, (forecast.size() + 1) % kMemoryPhases));
  }
  forecast[1].phases[5].peak_total = int64_t{1} << 40;  // of a rank that is not shown
  check_snapshot("loop/memory.txt", concat(memory_table(forecast), "\n\n", memory_table(forecast, measured), "\n\n",
                                           memory_table({forecast[7], forecast[8]}, {measured[7], measured[8]}, 7), "\n"));
  check_snapshot("loop/memory.json", lines_of(memory_json({forecast[3], forecast[5]})) + "\n");
}

TEST_CASE("snapshot: loop: what the two ways of accumulating gradients cost, each at its own worst rank") {
  Config config;
  std::vector<RankMemory> chosen{varied_memory(1000, 0), varied_memory(2000, 0)}, other{varied_memory(500, 0), varied_memory(400, 0)};
  chosen[0].reduced_bytes = 3e6;
  chosen[1].reduced_bytes = 2e6;
  other[0].reduced_bytes = 5e6;
  other[1].reduced_bytes = 9e9;
  config.parallel.zero_stage = 2;
  config.parallel.gradient_accumulation = GradientAccumulation::kFull;
  const std::string full = accumulation_text(config, chosen, other);
  CHECK(full ==
        "parallel.gradient_accumulation: full stores up to 3.906 KiB of gradients and sends 2.861 MiB per step to reduce them; sharded stores up to "
        "1000 B "
        "of gradients and sends 8.382 GiB per step to reduce them");
  const std::string sharded = accumulation_text(with_other_accumulation(config), chosen, other);
  CHECK(sharded.starts_with("parallel.gradient_accumulation: sharded stores up to 3.906 KiB of gradients"));
  CHECK(sharded.find("; full stores up to 1000 B of gradients") != sharded.npos);
}

TEST_CASE("loop: gradients may be accumulated in two ways from stage 2 and two micro-batches on") {
  const auto is_a_choice = [](int64_t stage, int64_t batch, CompressionMethod method = CompressionMethod::kNone,
                              CompressionScope scope = CompressionScope::kData) {
    Config config;
    config.parallel.data = 2;
    config.parallel.zero_stage = stage;
    config.training.micro_batch_size = 3;
    config.training.global_batch_size = batch;
    config.training.compression.method = method;
    config.training.compression.scope = scope;
    return accumulation_is_a_choice(config);
  };
  for (const int64_t stage : {0, 1}) CHECK_FALSE(is_a_choice(stage, 12));
  for (const int64_t stage : {2, 3}) {
    CHECK_FALSE(is_a_choice(stage, 6));  // one micro-batch of three sequences on each of two ranks
    CHECK(is_a_choice(stage, 9));        // two on one of them
    CHECK(is_a_choice(stage, 12));
    CHECK_FALSE(is_a_choice(stage, 12, CompressionMethod::kInt8));
    CHECK(is_a_choice(stage, 12, CompressionMethod::kInt8, CompressionScope::kReplicate));
  }
}

TEST_CASE("loop: files of GPUs are those with a number, and threads of a rank are its share of the cores") {
  const Scratch files;
  CHECK_FALSE(has_gpu_files(files / "none"));
  for (const char* name : {"dev/nvidiactl", "dev/nvidia-uvm", "dev/nvidia-caps", "dev/nvidia", "dev/nvidia1x", "dev/xnvidia0"}) files.write(name, "");
  CHECK_FALSE(has_gpu_files(files / "dev"));
  files.write("dev/nvidia10", "");
  CHECK(has_gpu_files(files / "dev"));
  CHECK(threads_per_rank(1, 7) == 7);
  CHECK(threads_per_rank(100, 7) == 7);
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  CHECK(threads_per_rank(1, 0) == std::min(usable_cores(), cores));
  CHECK(threads_per_rank(0, 0) == threads_per_rank(1, 0));
  CHECK(threads_per_rank(2, 0) == std::max(1, std::min(usable_cores(), cores / 2)));
  CHECK(threads_per_rank(cores + 1, 0) == 1);
}

TEST_CASE("loop: what a rank of each of three stages recomputes, and products that the plain kernel computes") {
  Config config;
  config.parallel.pipeline = 3;
  config.parallel.layers_per_stage = std::vector<int64_t>{2, 1, 2, 3, 1, 2};
  constexpr Recompute kNone = Recompute::kNone, kSelective = Recompute::kSelective, kFull = Recompute::kFull;
  const std::vector<Recompute> policy{kFull, kFull, kSelective, kNone, kFull, kSelective, kSelective, kNone, kNone, kNone, kFull};
  // Rank 0 has blocks 0, 1, 9 and 10, rank 1 blocks 2 and 8, rank 2 blocks 3 to 7.
  CHECK(recompute_text(config, {0, 1, 2, 2, 1, 0}, policy) ==
        "recompute: rank 0 keeps 1 of 4 blocks, 0 selective, 3 full\n"
        "recompute: rank 1 keeps 1 of 2 blocks, 1 selective, 0 full\n"
        "recompute: rank 2 keeps 2 of 5 blocks, 2 selective, 1 full");
  config.parallel.pipeline = 1;
  config.parallel.layers_per_stage = std::vector<int64_t>{1};
  CHECK(recompute_text(config, {0}, {kSelective}) == "recompute: rank 0 keeps 0 of 1 block, 1 selective, 0 full");
  constexpr const char* kText = " products of a training step over all ranks, slowly; sizes that are multiples of 8 elements avoid it";
  CHECK(plain_products_warning(17, {"3 x 5 x 7, bf16"}) ==
        concat("warning: cuBLASLt has no kernel for 1 shape of matrix products, so the plain kernel computes 17", kText, "\n  3 x 5 x 7, bf16"));
  CHECK(plain_products_warning(4, {"3 x 5 x 7, bf16", "9 x 1 x 2, fp32"}) ==
        concat("warning: cuBLASLt has no kernel for 2 shapes of matrix products, so the plain kernel computes 4", kText,
               "\n  3 x 5 x 7, bf16\n  9 x 1 x 2, fp32"));
}

TEST_CASE("snapshot: loop: exposed time of three ranks, each cause with its own slowest one") {
  std::vector<ExposedTime> ranks(3);
  for (size_t rank = 0; rank < 3; ++rank)
    for (size_t cause = 0; cause < kCauses; ++cause)
      ranks[rank][cause] = static_cast<double>((rank + cause) % 3 + 1) * 0.0125 * static_cast<double>(cause + 1);
  ranks[0][static_cast<size_t>(Cause::kTensor)] = 12.5;
  check_snapshot("loop/exposed.txt", exposed_table(ranks) + "\n");
}

TEST_CASE("snapshot: loop: a trace of two steps on two pipeline ranks, with overlapping operations") {
  const auto at = [](ActionType type, int stage) { return Action{type, stage, 0, -1, is_compute(type) ? 0 : -1}; };
  StepTrace first, second;
  first.seconds = second.seconds = 8;
  first.stretches = {{Cause::kDataWait, 0, 0.5}};
  first.timeline = {{at(ActionType::kForward, 0), 0.5, 1.5},         {at(ActionType::kSendForward, 0), 1.5, 8},
                    {at(ActionType::kRecvBackward, 0), 1.5, 6},      {at(ActionType::kBackward, 0), 6, 7},
                    {{ActionType::kReduceGrads, 0, -1, 2}, 7, 7.25}, {{ActionType::kNorm}, 7.25, 8}};
  first.operations = {{"pipeline", "exchange", 1.5, 1.5, 1.5, 6},
                      {"shard", "all_gather", 0.5, 0.625, 1, 1.25},
                      {"shard", "all_gather", 0.625, 0.75, 1.25, 1.5},
                      {"tensor", "all_reduce", 6.25, 6.25, 6.5, 6.75},
                      {"world", "all_reduce", 7.5, 7.5, 7.5, 7.75}};
  first.kernels = {{"qkv linear_forward", 0.5, 0.75}, {"rms_norm", 0.75, 0.875}};
  second.timeline = {{at(ActionType::kRecvForward, 1), 1, 2},
                     {at(ActionType::kForward, 1), 2, 3},
                     {at(ActionType::kBackward, 1), 3, 5.5},
                     {at(ActionType::kSendBackward, 1), 5.5, 5.5},
                     {{ActionType::kNorm}, 5.5, 8}};
  second.operations = {{"pipeline", "exchange", 1, 1, 1, 2}, {"replicate", "all_reduce", 5.5, 5.75, 5.75, 8}};
  ChromeTrace trace;
  const MeshShape shape{.pipeline = 2, .shard = 2};
  for (const int step : {5, 6})
    trace.add(concat("step ", step), 10.0 * (step - 5) + 0.000001,
              {traced_rank(shape, 1, first), traced_rank(shape, 3, second)});  // of the second pipeline
  check_snapshot("loop/trace.json", trace.text());
}

TEST_CASE("snapshot: loop: which kernels compute attention, with two shapes of each") {
  AttentionKernels kernels;
  kernels.shapes = {
      {.shape = "forward, 2 x 128 tokens, 8 heads, 2 kv heads of size 64, bf16", .reason = "", .ranks = 3, .difference = 0.25},
      {.shape = "backward, 2 x 128 tokens, 8 heads, 1 kv head of size 300, bf16", .reason = "head size 300", .ranks = 1},
      {.shape = "forward, 1 x 96 tokens, 12 heads, 12 kv heads of size 64, window 32, fp16", .reason = "", .ranks = 1, .difference = 0.5},
      {.shape = "backward, 1 x 96 tokens, 12 heads, 12 kv heads of size 64, window 32, fp16",
       .reason = "the result differs by 3 times what is allowed",
       .ranks = 4,
       .mismatch = true,
       .difference = 3}};
  const nlohmann::ordered_json json = to_json(kernels);
  check_snapshot("loop/attention.txt", attention_text(json) + lines_of(json) + "\n");
  kernels.shapes.resize(1);
  CHECK(attention_text(to_json(kernels)) == "cuDNN computes 1 shape of attention, the built-in kernels 0\n");
  CHECK(attention_warning(to_json(kernels)).empty());
}

TEST_CASE("snapshot: replica check: two ranks that differ in other tensors, more tensors and ranks than are listed") {
  ParityLayout layout;
  layout.data = 20;
  layout.layers = 1;
  Config config = parity_config(ParityModel::kLlama, layout, "fp64");
  config.training.global_batch_size = 20;
  std::mutex mutex;
  std::string few, many;
  run_ranks(20, [&](Communicator& world) {
    Arena arena(Device::kReference, true);
    Context ctx{Device::kReference, &arena, 1};
    Trainer trainer(ctx, world, config, true);
    trainer.initialise();
    const auto change = [&](int rank, size_t tensor, unsigned char bit) {
      if (world.rank() != rank) return;
      const std::vector<OwnedBox> boxes = trainer.owned_boxes();
      *static_cast<unsigned char*>(boxes[tensor % boxes.size()].weight.raw()) ^= bit;
    };
    change(3, 0, 1);
    change(18, 0, 2);
    change(7, 2, 1);
    const std::string two = replica_differences(trainer);
    for (size_t tensor = 3; tensor < 12; ++tensor) change(1 + static_cast<int>(tensor), tensor, 1);
    const std::string all = replica_differences(trainer);
    const std::lock_guard lock(mutex);
    TRIREME_CHECK(few.empty() || few == two, "rank ", world.rank(), " has another result");
    few = two;
    many = all;
  });
  check_snapshot("resilience/replicas.txt", few + "\n\n" + many + "\n");
}

}  // namespace trireme::test
