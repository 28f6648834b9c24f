#include "trainer/bench/step.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <optional>

#include "kernels/core/counted.h"
#include "kernels/core/rng.h"
#include "kernels/ops/transfer.h"
#include "trainer/bench/operations.h"
#include "trainer/bench/peak.h"
#include "trainer/bench/phases.h"
#include "trainer/bench/products.h"
#include "trainer/files/table.h"
#include "trainer/loop/attention_kernels.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/plain_products.h"
#include "trainer/loop/product_tuning.h"
#include "trainer/loop/resident.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"
#include "trainer/model/flops.h"
#include "trainer/plan/text.h"

namespace trireme::bench {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::ordered_json;

/// Random tokens with random access to samples.
class RandomDataset final : public Dataset {
 public:
  RandomDataset(int64_t sequence, int64_t vocab_size) : sequence_(sequence), vocab_size_(static_cast<uint64_t>(vocab_size)) {}
  int64_t sequences() const override { return int64_t{1} << 30; }
  void read(int64_t sample, int32_t* tokens, int32_t* targets, std::vector<int64_t>& segments) const override {
    segments.push_back(sequence_);
    int32_t token = draw(sample, 0);
    for (int64_t t = 0; t < sequence_; ++t) {
      tokens[t] = token;
      token = draw(sample, t + 1);
      targets[t] = token;
    }
  }

 private:
  int32_t draw(int64_t sample, int64_t place) const {
    return static_cast<int32_t>(random_bits(key_, static_cast<uint64_t>(sample), static_cast<uint64_t>(place)) % vocab_size_);
  }
  int64_t sequence_;
  uint64_t vocab_size_;
  uint64_t key_ = random_key(1, "bench step");
};

struct Steps {
  std::vector<double> seconds;
  double first_loss = 0, last_loss = 0;
  int64_t system_allocations = 0;
  int64_t peak_resident = 0;  ///< 0: unknown
};

/// Runs steps as in training: on a GPU a step is finished after the next one has been started. The start of a step waits for room in the queue of
/// launches, so that the first end is seen late and the last one early there: these two are not counted.
Steps run_steps(Context& ctx, Trainer& trainer, const Dataset& data, double learning_rate, const StepOptions& options) {
  Steps result;
  for (int64_t step = 0; step < options.warmup; ++step) {
    const double loss = trainer.step(data, step, learning_rate).loss;
    if (step == 0) result.first_loss = loss;
  }
  const bool resident_known = reset_peak_resident();
  const int64_t allocations = ctx.arena->system_allocations();
  const bool overlap = ctx.device == Device::kCuda;
  std::optional<Trainer::StepInFlight> before;
  auto last = Clock::now();
  const auto finish = [&](const Trainer::StepInFlight& step) {
    result.last_loss = trainer.finish(step).loss;
    const auto now = Clock::now();
    result.seconds.push_back(std::chrono::duration<double>(now - std::exchange(last, now)).count());
  };
  for (int64_t step = 0; step < options.steps + (overlap ? 2 : 0); ++step) {
    Trainer::StepInFlight started = trainer.start(data, options.warmup + step, learning_rate);
    if (before) finish(*std::exchange(before, std::nullopt));
    before = std::move(started);
    if (!overlap) finish(*std::exchange(before, std::nullopt));
  }
  if (before) finish(*before);
  if (overlap) {
    result.seconds.pop_back();
    result.seconds.erase(result.seconds.begin());
  }
  result.system_allocations = ctx.arena->system_allocations() - allocations;
  if (resident_known) result.peak_resident = peak_resident_bytes();
  return result;
}

ordered_json spread(double median, double low, double high) { return {{"median", median}, {"low", low}, {"high", high}}; }

int64_t largest(Communicator& world, int64_t bytes) {
  return static_cast<int64_t>(all_reduce_scalar(world, static_cast<double>(bytes), ReduceOp::kMax));
}

ordered_json memory_of(const Arena& arena, Communicator& world, const RankMemory& forecast) {
  ordered_json memory;
  for (size_t c = 0; c < kMemoryCategories; ++c) {
    const auto category = static_cast<MemoryCategory>(c);
    memory[name_of(category)] = largest(world, arena.peak_bytes(category));
  }
  memory["peak"] = largest(world, arena.peak_bytes());
  memory["arena"] = largest(world, forecast.arena_bytes);
  return memory;
}

ordered_json resident_of(const Arena& arena, Communicator& world, int64_t before, int64_t peak) {
  int64_t state = 0;
  for (const MemoryCategory category : {MemoryCategory::kParameters, MemoryCategory::kGradients, MemoryCategory::kOptimizer})
    state += arena.peak_bytes(category);
  const ordered_json resident = {
      {"before", largest(world, before)}, {"peak", largest(world, peak)}, {"beyond", largest(world, peak - before - state)}};
  return all_reduce_scalar(world, static_cast<double>(peak), ReduceOp::kMin) > 0 ? resident : ordered_json();
}

/// The training options that another program must use for a comparable step.
ordered_json training_of(const TrainingConfig& t) {
  return {{"sequence_length", t.sequence_length},
          {"micro_batch_size", t.micro_batch_size},
          {"global_batch_size", t.global_batch_size},
          {"gradient_clip", t.gradient_clip},
          {"optimizer",
           {{"learning_rate", t.optimizer.learning_rate},
            {"beta1", t.optimizer.beta1},
            {"beta2", t.optimizer.beta2.value_or(0)},
            {"epsilon", t.optimizer.epsilon},
            {"weight_decay", t.optimizer.weight_decay}}}};
}

/// Null on a CPU, and on a GPU whose peak is not known.
ordered_json mfu_of(const Context& ctx, const Communicator& world, const Config& config, double flops) {
  if (ctx.device != Device::kCuda) return {};
  const auto peak = peak_flops(ctx.gpu->properties().name, precision_of(config.training).compute);
  return peak ? ordered_json(flops / (*peak * world.size() / static_cast<double>(config.run.ranks_per_gpu))) : ordered_json();
}

}  // namespace

ordered_json bench_step(Context& ctx, Communicator& world, const Config& config, const StepOptions& options) {
  const MeshShape mesh = mesh_shape(config.parallel);
  const TrainingConfig& training = config.training;
  const Precision precision = precision_of(training);
  const int64_t before = resident_bytes();
  // Measure the ceiling first, so that its operands are freed before the run allocates memory.
  Effort effort = options.effort;
  effort.world = &world;
  const int64_t rows = training.micro_batch_size * training.sequence_length;
  const double mine = gemm_ceiling(ctx, precision.compute, products_of(config.model, rows, mesh.tensor), effort);
  const double ceiling = all_reduce_scalar(world, mine, ReduceOp::kSum);
  const OperationLimits limits{mine, options.operations ? copy_bandwidth(ctx, effort) : 0};

  RankMemory forecast;
  collectively(world, [&] { forecast = forecast_memory(config, world.rank(), world.size()); });
  if (ctx.device == Device::kCuda) reserve_memory(ctx, world, config, forecast);
  Trainer trainer(ctx, world, config, true);
  if (ctx.device == Device::kCuda) register_memory(world);
  trainer.initialise();
  const RandomDataset data(training.sequence_length, *config.model.vocab_size);
  const std::optional<TunedProducts> tuned = tune_products(trainer, data, 0);
  const Steps steps = run_steps(ctx, trainer, data, training.optimizer.learning_rate, options);
  const double median = quantile_of(steps.seconds, 0.5), low = quantile_of(steps.seconds, 0.1), high = quantile_of(steps.seconds, 0.9);
  const auto tokens = static_cast<double>(training.global_batch_size * training.sequence_length);
  const double flops = tokens / median * training_flops_per_token(config.model, training.sequence_length);
  ordered_json result = {{"model", describe_model(config.model)},
                         {"parameters", parameter_count(config.model)},
                         {"precision", training.precision.text()},
                         {"training", training_of(training)},
                         {"tokens_per_step", static_cast<int64_t>(tokens)},
                         {"steps", options.steps},
                         {"step_seconds", spread(median, low, high)},
                         {"tokens_per_second", spread(tokens / median, tokens / high, tokens / low)},
                         {"model_tflops", flops / 1e12},
                         {"gemm_ceiling_tflops", ceiling / 1e12},
                         {"share_of_gemm_ceiling", flops / ceiling},
                         {"mfu", mfu_of(ctx, world, config, flops)},
                         {"phases", nullptr},
                         {"memory_bytes", memory_of(*ctx.arena, world, forecast)},
                         {"resident_bytes", nullptr},
                         {"system_allocations", steps.system_allocations},
                         {"plain_products", nullptr},
                         {"tuned_products", nullptr},
                         {"cudnn_attention", nullptr},
                         {"loss", {{"first", steps.first_loss}, {"last", steps.last_loss}}},
                         {"environment", describe_environment(ctx, world.size(), mesh)}};
  result["step_seconds"]["mean"] = std::accumulate(steps.seconds.begin(), steps.seconds.end(), 0.0) / static_cast<double>(steps.seconds.size());
  if (options.operations) result["operations"] = operations_of(ctx, trainer, config, limits);
  if (ctx.device == Device::kCuda) {
    const PlainProducts plain = plain_products(trainer);
    result["plain_products"] = {{"per_step", plain.per_step}, {"shapes", plain.shapes}};
    if (config.kernels.attention == AttentionEngine::kCudnn) result["cudnn_attention"] = to_json(attention_kernels(trainer, config));
  } else {
    result["resident_bytes"] = resident_of(*ctx.arena, world, before, steps.peak_resident);
  }
  result["phases"] = phases_of(ctx, trainer, config, median);
  if (tuned) result["tuned_products"] = {{"timed", tuned->timed}, {"known", tuned->known}, {"note", tuned->note}};
  return result;
}

std::string step_text(const ordered_json& result) {
  const auto number = [&](const char* section, const char* key) { return result[section][key].get<double>(); };
  std::string text =
      trireme::concat("\n", result["parameters"], " parameters, ", result["precision"].get<std::string>(), ", ", result["tokens_per_step"],
                      " tokens per step\nstep    ", number("step_seconds", "median"), " s (", number("step_seconds", "low"), " to ",
                      number("step_seconds", "high"), ", 10th to 90th percentile of ", counted(result["steps"].get<int64_t>(), "step"), ")\ntokens  ",
                      number_text(number("tokens_per_second", "median")), " per second\nmodel   ", result["model_tflops"].get<double>(), " TFLOP/s, ",
                      100 * result["share_of_gemm_ceiling"].get<double>(), " % of the ", result["gemm_ceiling_tflops"].get<double>(),
                      " TFLOP/s that its matrix products reach alone");
  if (!result["mfu"].is_null()) text += concat(", ", 100 * result["mfu"].get<double>(), " % of the hardware's peak");
  text += "\n";
  if (const ordered_json& plain = result["plain_products"]; !plain.is_null() && !plain["shapes"].empty())
    text += plain_products_warning(plain["per_step"], plain["shapes"]) + "\n";
  if (const ordered_json& tuned = result["tuned_products"]; !tuned.is_null() && tuned["note"] != "")
    text += "note: " + tuned["note"].get<std::string>() + "\n";
  if (const ordered_json& attention = result["cudnn_attention"]; !attention.is_null()) text += attention_text(attention);
  if (!result["phases"].is_null()) text += "\n" + table_of(result["phases"]);
  if (result.contains("operations")) text += "\n" + table_of(result["operations"]);
  ordered_json memory = ordered_json::array();
  for (const auto& [name, bytes] : result["memory_bytes"].items())
    memory.push_back({{"memory", name}, {"peak", binary_bytes_text(bytes.get<double>())}});
  if (const ordered_json& resident = result["resident_bytes"]; !resident.is_null())
    memory.push_back({{"memory", "resident, beyond model state"}, {"peak", binary_bytes_text(resident["beyond"].get<double>())}});
  return text + "\n" + table_of(memory);
}

}  // namespace trireme::bench
