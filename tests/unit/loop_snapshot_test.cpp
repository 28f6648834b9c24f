// Tables and traces of the training loop, whole, for several ranks and steps, and figures of layers that several ranks share.
#include <array>
#include <functional>
#include <map>
#include <mutex>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "tests/support/parity.h"
#include "tests/support/snapshot.h"
#include "tests/support/thread_ranks.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/attention_kernels.h"
#include "trainer/loop/collectively.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/layer_gradients.h"
#include "trainer/loop/learning_rate.h"
#include "trainer/loop/memory_table.h"
#include "trainer/loop/trace.h"
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
      {.shape = "forward of 8 heads", .reason = "", .ranks = 3, .difference = 0.25},
      {.shape = "backward of 8 heads", .reason = "head size 300", .ranks = 1},
      {.shape = "forward of 12 heads", .reason = "", .ranks = 1, .difference = 0.5},
      {.shape = "backward of 12 heads", .reason = "the result differs by 3 times what is allowed", .ranks = 4, .mismatch = true, .difference = 3}};
  const nlohmann::ordered_json json = to_json(kernels);
  check_snapshot("loop/attention.txt", attention_text(json) + lines_of(json) + "\n");
  kernels.shapes.resize(1);
  CHECK(attention_text(to_json(kernels)) == "cuDNN computes 1 shape of attention, the built-in kernels 0\n");
  CHECK(attention_warning(to_json(kernels)).empty());
}

TEST_CASE("layer gradients: parts of a layer on two ranks add up without the loss scale, and each layer has its own last step") {
  ModelConfig model;
  model.layers = 2;
  model.hidden_size = 8;
  model.heads = 2;
  model.vocab_size = 256;
  Config config;
  config.model = model;
  config.training.steps = 1;
  model = resolve(config).model;
  run_ranks(2, [&](Communicator& world) {
    LayerGradients layers(model);
    const bool first = world.rank() == 0;
    const auto set = [&](double up, double norm, double of_second) {
      if (first)
        layers.set({{"blocks.0.mlp.up.weight", up}, {"blocks.0.mlp_norm.weight", norm}, {"embedding.weight", 0.0}});
      else
        layers.set({{"blocks.0.attention.query.weight", up / 2}, {"blocks.1.mlp.up.weight", of_second}});
      layers.count_step();
    };
    set(1, 0, 64);
    set(0, 4, 0);
    set(256, 16, 0);
    std::string text;
    for (const auto& [layer, norm, zero_steps] : layers.gather(world, 4)) text += concat(layer, " ", norm, " ", zero_steps, "; ");
    // sqrt(256 + 16 + 128) / 4 = 5.
    TRIREME_CHECK(text.starts_with("embedding 0 3; blocks.0 5 0; blocks.1 0 2; "), text);
  });
}

TEST_CASE("learning rate: an exponential decay, and every decay with a batch that is not the reference batch", "[learning_rate]") {
  OptimizerConfig optimizer;
  optimizer.learning_rate = 0.5;
  optimizer.reference_batch_size = 8;
  optimizer.learning_rate_scaling = "linear";  // 32 sequences: the peak is 2, and the end 0.02
  ScheduleConfig schedule;
  schedule.warmup_steps = 20;
  schedule.final_learning_rate = 0.005;
  const auto rate = [&](LearningRateSchedule name, int64_t step) {
    schedule.name = name;
    return learning_rate(schedule, optimizer, 32, step, 100);
  };
  CHECK(rate(LearningRateSchedule::kExponential, 5) == Approx(0.5));
  CHECK(rate(LearningRateSchedule::kExponential, 20) == Approx(2));
  CHECK(rate(LearningRateSchedule::kExponential, 60) == Approx(0.2));  // half of the way to a hundredth
  CHECK(rate(LearningRateSchedule::kExponential, 100) == Approx(0.02));
  CHECK(rate(LearningRateSchedule::kLinear, 40) == Approx(2 - 0.25 * 1.98));
  CHECK(rate(LearningRateSchedule::kCosine, 60) == Approx(1.01));
  CHECK(rate(LearningRateSchedule::kCosine, 100) == Approx(0.02));
  CHECK(rate(LearningRateSchedule::kConstant, 100) == Approx(2));
  schedule.decay_steps = 40;
  CHECK(rate(LearningRateSchedule::kWsd, 60) == Approx(2));
  CHECK(rate(LearningRateSchedule::kWsd, 70) == Approx(2 - 0.25 * 1.98));
  CHECK(rate(LearningRateSchedule::kWsd, 100) == Approx(0.02));
}

TEST_CASE("collectively: the first error of several ranks, and the ranks that failed or differ, of which eight are listed") {
  std::map<std::string, std::string> said;
  run_ranks(12, [&](Communicator& world) {
    const int rank = world.rank();
    const auto message_of = [&](const std::string& what, const std::function<void()>& body) {
      std::string message = "no error";
      try {
        body();
      } catch (const AgreedError& error) {
        message = concat(static_cast<int>(error.code()), " ", error.what());
      }
      if (rank == 0) said[what] = message;
    };
    const auto failing_on = [&](int from, int to) {
      return [&world, rank, from, to] {
        collectively(world, [&] {
          if (rank == from) throw IoError(concat("no space on rank ", rank));
          if (rank > from && rank <= to) throw DataError(concat("rank ", rank, " is late"));
        });
      };
    };
    message_of("two", failing_on(3, 4));
    message_of("ten", failing_on(1, 10));
    message_of("all", failing_on(0, 11));
    message_of("none", failing_on(12, 12));
    message_of("facts", [&] {
      check_same_everywhere(world, {{"the binary", rank == 5 || rank == 7 ? "b" : "a"}, {"the data", rank == 0 ? "x" : "y"}, {"the seed", "1"}});
    });
    message_of("results", [&] { check_same_result(world, "step 7", std::array{1.5, rank == 2 || rank == 9 ? 0.25 + rank : 0.25, 3.0}); });
  });
  CHECK(said.at("two") == "74 no space on rank 3 (on ranks 3, 4)");
  CHECK(said.at("ten") == "74 no space on rank 1 (on ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more)");
  CHECK(said.at("all") == "74 no space on rank 0");
  CHECK(said.at("none") == "no error");
  CHECK(said.at("facts") ==
        "64 the ranks of this job disagree: the binary differs between rank 0 and ranks 5, 7; the data differs between rank 0 and ranks 1, 2, 3, 4, "
        "5, 6, "
        "7, 8 and 3 more");
  CHECK(said.at("results").starts_with(concat("70 the ranks have different copies of the results of step 7: rank 2 on ", host_name(), ", rank 9 on ",
                                              host_name(), " may be at fault. ")));
}

TEST_CASE("environment: a layout has the degree of each of its axes") {
  CHECK(describe_layout({.pipeline = 6, .replicate = 2, .shard = 3, .tensor = 4, .islands = 5}).dump() ==
        R"({"islands":5,"pipeline":6,"replicate":2,"shard":3,"tensor":4})");
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
