#include "trainer/config/check.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "parallel/pipeline/schedule.h"
#include "trainer/config/check_communication.h"
#include "trainer/config/check_elastic.h"
#include "trainer/config/check_federation.h"
#include "trainer/config/check_fields.h"
#include "trainer/config/check_peers.h"
#include "trainer/config/check_privacy.h"
#include "trainer/config/check_reroute.h"
#include "trainer/config/derived_sizes.h"
#include "trainer/config/rules.h"
#include "trainer/config/validation_entry.h"

namespace trireme {
namespace {

/// `given`: as written, with `auto` unset. `c`: with all derived sizes filled in.
void check_model(Rules& rules, const Config& given, const Config& c) {
  const ModelConfig& m = c.model;
  const int64_t heads = m.heads, kv_heads = *m.kv_heads, width = m.hidden_size, length = c.training.sequence_length;
  if (rules.apply({"model.architecture", "model.head_size", "model.hidden_size", "model.heads"})) {
    const bool rope = m.preset().positions == PositionKind::kRope && m.rotated_share() == 1;  // else see below
    const auto divides = [&](int64_t n) { return width % n == 0 && !(rope && width / n % 2 != 0); };
    if (given.model.head_size && rope && *m.head_size % 2 != 0)
      rules.broken("model.head_size", "odd, but RoPE rotates pairs of dimensions", "even integers",
                   nearest(*m.head_size, 1, 1 << 16, [](int64_t n) { return n % 2 == 0; }));
    else if (!given.model.head_size && width % heads != 0)
      rules.broken("model.heads", concat("does not divide hidden_size ", width, ", and head_size is auto (hidden_size / heads)"),
                   "divisors of hidden_size", nearest(heads, 1, width, divides));
    else if (!given.model.head_size && !divides(heads))
      rules.broken("model.heads", concat("makes head_size ", *m.head_size, ", which is odd, but RoPE rotates pairs of dimensions"),
                   "divisors of hidden_size / 2", nearest(heads, 1, width, divides));
  }
  if (m.preset().positions == PositionKind::kRope &&
      rules.apply({"model.architecture", "model.rope_share", "model.head_size", "model.hidden_size", "model.heads"})) {
    const double rotated = *m.rope_share * static_cast<double>(*m.head_size);
    const int64_t even = std::clamp<int64_t>(2 * std::llround(rotated / 2), 2, std::max<int64_t>(2, *m.head_size / 2 * 2));
    if (*m.rope_share < 1 && std::abs(rotated - static_cast<double>(even)) > 1e-6)
      rules.broken("model.rope_share", concat("rotates ", rotated, " elements of a head of ", *m.head_size, ", which is not an even integer"),
                   "multiples of 2 / head_size", text_of(FieldValue(static_cast<double>(even) / static_cast<double>(*m.head_size))));
  }
  if (const ArchitecturePreset& preset = m.preset();
      rules.apply({"model.architecture", "model.activation"}) && !preset.gated && m.activation == Activation::kSilu)
    rules.broken("model.activation", concat("architecture ", m.architecture, " has an MLP without a gate"), "gelu | gelu_tanh",
                 name_of(preset.activation));
  if (rules.apply({"model.heads", "model.kv_heads"}) && heads % kv_heads != 0)
    rules.broken("model.kv_heads", concat("does not divide heads ", heads), "divisors of heads",
                 nearest(kv_heads, 1, heads, [&](int64_t n) { return heads % n == 0; }));
  if (rules.apply({"model.vocab_size"}) && c.data.tokenizer == "bytes" && *m.vocab_size < 256)
    rules.broken("model.vocab_size", "smaller than the tokenizer's 256", "integer from 256, or auto", "256");
  if (rules.apply({"model.max_positions", "training.sequence_length"}) && *m.max_positions < length)
    rules.broken("model.max_positions", concat("shorter than training.sequence_length ", length), concat("integer from ", length, ", or auto"),
                 std::to_string(length));
  if (m.preset().biases && !given.model.qkv_bias && rules.given("model.qkv_bias") && rules.apply({"model.architecture", "model.qkv_bias"}))
    rules.broken("model.qkv_bias", concat("architecture ", m.architecture, " always has these biases"), "true", "true, or remove the key");
  if (m.preset().head_norms && !given.model.qk_norm && rules.given("model.qk_norm") && rules.apply({"model.architecture", "model.qk_norm"}))
    rules.broken("model.qk_norm", concat("architecture ", m.architecture, " always has these norms"), "true", "true, or remove the key");
  if (m.window_layers && rules.apply({"model.layers", "model.window_layers"})) {
    const std::vector<int64_t>& layers = *m.window_layers;
    const std::string allowed = concat("all, or increasing integers from 0 to ", m.layers - 1);
    if (layers.empty())
      rules.broken("model.window_layers", "empty list: no layer would use the window", allowed, "all");
    else if (std::adjacent_find(layers.begin(), layers.end(), std::greater_equal()) != layers.end())
      rules.broken("model.window_layers", "not in increasing order, or a layer is repeated", allowed);
    else if (layers.back() >= m.layers)
      rules.broken("model.window_layers", concat("contains layer ", layers.back(), ", but model.layers is ", m.layers), allowed);
  }
  const RopeScalingConfig& scaling = m.rope_scaling;
  if (scaling.type == RopeScaling::kLlama3 && scaling.high_frequency_factor <= scaling.low_frequency_factor &&
      rules.apply({"model.rope_scaling.type", "model.rope_scaling.low_frequency_factor", "model.rope_scaling.high_frequency_factor"}))
    rules.broken("model.rope_scaling.high_frequency_factor", concat("not above low_frequency_factor ", scaling.low_frequency_factor),
                 concat("numbers above ", scaling.low_frequency_factor));
}

void check_tensor(Rules& rules, const Config& c) {
  const int64_t tensor = c.parallel.tensor, heads = c.model.heads, kv_heads = *c.model.kv_heads, ffn = *c.model.ffn_size;
  const auto kv_fits = [&](int64_t t) { return kv_heads % t == 0 || t % kv_heads == 0; };
  const auto fits = [&](int64_t t) { return heads % t == 0 && kv_fits(t) && ffn % t == 0; };
  if (!rules.apply({"parallel.tensor", "model.heads", "model.kv_heads", "model.ffn_size", "model.hidden_size"})) return;
  const std::string close = nearest(tensor, 1, heads, fits);
  if (heads % tensor != 0) rules.broken("parallel.tensor", concat("does not divide model.heads ", heads), "divisors of heads", close);
  if (!kv_fits(tensor))
    rules.broken("parallel.tensor", concat("neither divides model.kv_heads ", kv_heads, " nor is a multiple of it"),
                 "divisors or multiples of kv_heads", close);
  if (ffn % tensor != 0) rules.broken("parallel.tensor", concat("does not divide model.ffn_size ", ffn), "divisors of ffn_size", close);
}

void check_stages(Rules& rules, const Config& c) {
  const int64_t layers = c.model.layers, virtual_stages = *c.parallel.virtual_stages, stages = c.parallel.pipeline * virtual_stages;
  if (virtual_stages > layers && c.parallel.schedule == name_of(ScheduleKind::kZbV))
    rules.broken("parallel.schedule", concat("needs ", virtual_stages, " stages per rank, but model.layers is ", layers),
                 "a schedule with fewer stages", "1f1b");
  else if (virtual_stages > layers)
    rules.broken("parallel.virtual_stages", concat("more than model.layers ", layers),
                 concat("integer from 1 to ", std::max<int64_t>(1, layers / c.parallel.pipeline), " that the schedule supports"),
                 std::to_string(std::max<int64_t>(1, layers / c.parallel.pipeline)));
  else if (stages > layers)
    rules.broken("parallel.pipeline",
                 concat("more stages than model.layers ", layers, virtual_stages > 1 ? concat(": virtual_stages ", virtual_stages) : ""),
                 concat("integer from 1 to ", layers / virtual_stages), std::to_string(std::max<int64_t>(1, layers / virtual_stages)));
}

void check_split(Rules& rules, const Config& c, const std::vector<int64_t>& split) {
  const char* const key = "parallel.layers_per_stage";
  const int64_t layers = c.model.layers, virtual_stages = *c.parallel.virtual_stages, stages = c.parallel.pipeline * virtual_stages;
  const int64_t sum = std::accumulate(split.begin(), split.end(), int64_t{0});
  const std::string allowed =
      concat(stages, " integers from 1 with the sum ", layers, stages > 1 ? ", of which the first and the last may be 0" : "", ", or auto");
  const std::string times = virtual_stages > 1 ? concat(" x virtual_stages ", virtual_stages) : "";
  if (static_cast<int64_t>(split.size()) != stages)
    rules.broken(key, concat(split.size(), " entries for pipeline ", c.parallel.pipeline, times), allowed, "auto");
  if (sum != layers) rules.broken(key, concat("the sum is ", sum, ", but model.layers is ", layers), allowed, "auto");
  for (size_t stage = 1; stage + 1 < split.size(); ++stage)
    if (split[stage] == 0)
      return rules.broken(
          key,
          concat("stage ", stage, " would compute nothing; without layers, only the first stage has work, the embedding, and the last, the head"),
          allowed, "auto");
}

void check_pipeline(Rules& rules, const Config& c) {
  if (!rules.apply({"parallel.pipeline", "parallel.virtual_stages", "parallel.schedule", "model.layers"})) return;
  const int64_t virtual_stages = *c.parallel.virtual_stages, stages = c.parallel.pipeline * virtual_stages;
  for (const ScheduleKind kind : kScheduleKinds)
    if (c.parallel.schedule == name_of(kind) && !allows_virtual_stages(kind, static_cast<int>(virtual_stages)))
      rules.broken("parallel.virtual_stages", concat("schedule ", name_of(kind), " requires ", default_virtual_stages(kind)),
                   concat(default_virtual_stages(kind), ", auto, or schedule interleaved_1f1b"), std::to_string(default_virtual_stages(kind)));
  if (c.parallel.schedule == "file" && c.parallel.schedule_file == "none")
    rules.broken("parallel.schedule", "parallel.schedule_file is not given", "file with a schedule_file, or another schedule", "1f1b");
  const bool has_split = c.parallel.layers_per_stage && rules.apply({"parallel.layers_per_stage"});
  // A split with two stages without layers has up to two stages more than layers.
  const int64_t without_layers = has_split && static_cast<int64_t>(c.parallel.layers_per_stage->size()) == stages ? 2 : 0;
  if (stages > c.model.layers + without_layers) check_stages(rules, c);
  if (has_split) check_split(rules, c, *c.parallel.layers_per_stage);
}

/// The second copy of the parameters (ParamStore).
void check_secondary(Rules& rules, const ParallelConfig& p) {
  const char* const key = "parallel.secondary_shards";
  if (p.zero_stage != 3) return rules.broken(key, concat("zero_stage ", p.zero_stage, " gathers parameters once a step"), "0, or zero_stage 3", "0");
  if (rules.apply({"parallel.reshard"}) && p.reshard != Reshard::kAfterUse)
    return rules.broken(key, "reshard after_step gathers parameters once a step", "0, or reshard after_use", "0");
  if (!p.data || !rules.apply({"parallel.data", "parallel.replicate"}) || *p.data % p.replicate != 0) return;
  const int64_t shards = *p.data / p.replicate;
  const auto smaller = [&](int64_t n) { return n > 1 && n < shards && shards % n == 0; };
  if (smaller(p.secondary_shards)) return;
  rules.broken(key, concat("not a part of the ", shards, " shards that has fewer ranks and divides them"),
               concat("0, or divisors of ", shards, " between 1 and ", shards),
               nearest(p.secondary_shards, 0, shards, [&](int64_t n) { return n == 0 || smaller(n); }));
}

void check_data_axis(Rules& rules, const Config& c) {
  const ParallelConfig& p = c.parallel;
  if (p.data && rules.apply({"parallel.islands", "parallel.tensor", "parallel.pipeline", "parallel.data"})) {
    int64_t world = 0;
    const bool overflow = __builtin_mul_overflow(p.tensor, p.pipeline, &world) || __builtin_mul_overflow(world, *p.data, &world) ||
                          __builtin_mul_overflow(world, p.islands, &world);
    if (overflow || world > static_cast<int64_t>(kMaxExtent))
      rules.broken("parallel.data",
                   concat(islands_text(p), "tensor ", p.tensor, " x pipeline ", p.pipeline, " x data ", *p.data, " ranks do not fit 32 bits"),
                   "a product up to 2147483647");
  }
  const bool sound = p.data && rules.apply({"parallel.data", "parallel.replicate"});
  if (sound && *p.data % p.replicate != 0)
    rules.broken("parallel.replicate", concat("does not divide parallel.data ", *p.data), "divisors of data",
                 nearest(p.replicate, 1, *p.data, [&](int64_t n) { return *p.data % n == 0; }));
  else if (sound && rules.apply({"parallel.zero_stage"}) && p.zero_stage == 0 && p.replicate != 1 && p.replicate != *p.data)
    rules.broken("parallel.replicate", "ZeRO-0 shards nothing: every data rank is a replica", concat("1 or ", *p.data, ", or a zero_stage from 1"),
                 "1");
  if (!rules.apply({"parallel.zero_stage"})) return;
  if (rules.apply({"parallel.gradient_accumulation"}) && p.gradient_accumulation == GradientAccumulation::kSharded && p.zero_stage < 2)
    rules.broken("parallel.gradient_accumulation", concat("zero_stage ", p.zero_stage, " keeps full gradients"),
                 "auto | full, or a zero_stage from 2", "full");
  if (rules.apply({"parallel.reshard"}) && p.reshard != Reshard::kAfterUse && p.zero_stage != 3)
    rules.broken("parallel.reshard", concat("zero_stage ", p.zero_stage, " does not shard parameters"), "after_use, or zero_stage 3", "after_use");
  if (rules.apply({"parallel.secondary_shards"}) && p.secondary_shards != 0) check_secondary(rules, p);
  if (rules.apply({"parallel.prefetch"}) && p.prefetch != ParallelConfig{}.prefetch && p.zero_stage == 0)
    rules.broken("parallel.prefetch", "has no effect: zero_stage 0 gathers nothing", "a zero_stage from 1",
                 std::to_string(ParallelConfig{}.prefetch));
}

void check_recompute(Rules& rules, const TrainingConfig& t) {
  if (t.recompute == RecomputeMode::kBudget && !t.recompute_budget && rules.apply({"training.recompute", "training.recompute_budget"}))
    rules.broken("training.recompute", "training.recompute_budget is not given", "none | selective | full, or budget with a recompute_budget",
                 "full");
}

void check_actions(Rules& rules, const Config& c, int64_t microbatches, int64_t unit) {
  const int64_t stages = c.parallel.pipeline * c.parallel.virtual_stages.value_or(1);
  if (!rules.apply({"parallel.pipeline", "parallel.virtual_stages"}) || fits_action_limit(stages, microbatches)) return;
  rules.broken("training.global_batch_size",
               concat("a step of ", counted(microbatches, "micro-batch", "micro-batches"), " on ", counted(stages, "stage"), " has too many actions"),
               concat("micro-batches x stages up to ", kMaxActionPairs, ", or a larger micro_batch_size"),
               std::to_string(kMaxActionPairs / stages * unit));
}

/// Data ranks of an elastic job may have different numbers of micro-batches.
void check_elastic_batch(Rules& rules, const Config& c) {
  const int64_t rows = c.training.micro_batch_size, batch = c.training.global_batch_size, data = *c.parallel.data;
  int64_t least = 0;
  if (__builtin_mul_overflow(rows, data, &least) || least > static_cast<int64_t>(kMaxExtent)) return;  // too many ranks, which has a rule of its own
  if (batch % rows != 0 || batch < least)
    return rules.broken("training.global_batch_size",
                        batch < least ? concat("fewer than one micro-batch of ", rows, " for each of ", data, " data ranks")
                                      : concat("not a multiple of micro_batch_size ", rows),
                        concat("multiples of ", rows, " from ", least), std::to_string(std::max(batch / rows * rows, least)));
  check_actions(rules, c, (batch / rows + data - 1) / data, least);
}

void check_batch(Rules& rules, const Config& c) {
  const ParallelConfig& p = c.parallel;
  const TrainingConfig& t = c.training;
  if (rules.apply({"training.micro_batch_size", "training.sequence_length"})) {
    const int64_t tokens = t.micro_batch_size * t.sequence_length;  // both fit 32 bits
    if (tokens > static_cast<int64_t>(kMaxExtent))
      rules.broken("training.micro_batch_size", concat(tokens, " tokens in one micro-batch do not fit 32 bits"),
                   "micro_batch_size x sequence_length up to 2147483647", std::to_string(static_cast<int64_t>(kMaxExtent) / t.sequence_length));
    const auto divides = [&](int64_t length) { return t.micro_batch_size * length % p.tensor == 0; };
    if (p.sequence_parallel && rules.apply({"parallel.tensor", "parallel.sequence_parallel"}) && !divides(t.sequence_length))
      rules.broken("parallel.sequence_parallel", concat("tensor ", p.tensor, " does not divide micro_batch_size x sequence_length = ", tokens),
                   "false, or a multiple of tensor",
                   concat("sequence_length ", nearest(t.sequence_length, 1, t.sequence_length + p.tensor, divides)));
  }
  if (!p.data || !rules.apply({"training.global_batch_size", "training.micro_batch_size", "parallel.data", "parallel.islands"})) return;
  const bool served = has_parameter_servers(t);
  if (served && !rules.apply({"training.asynchronous.mode", "training.asynchronous.apply_after"})) return;
  if (is_elastic(c.resilience)) return check_elastic_batch(rules, c);
  int64_t unit = 0;
  if (__builtin_mul_overflow(t.micro_batch_size * *p.data, gradients_per_step(c), &unit)) return;  // too many ranks, which has a rule of its own
  const std::string parts = served ? concat("apply_after ", gradients_per_step(c), " x ") : islands_text(p);
  const int64_t below = t.global_batch_size / unit * unit;
  if (t.global_batch_size % unit != 0)
    rules.broken("training.global_batch_size",
                 concat("not a multiple of micro_batch_size ", t.micro_batch_size, " x ", parts, "data ", *p.data, " = ", unit),
                 concat("multiples of ", unit), below > 0 ? concat(below, " or ", below + unit) : std::to_string(unit));
  if (t.global_batch_size % unit == 0) check_actions(rules, c, t.global_batch_size / unit, unit);
}

void check_training(Rules& rules, const Config& c) {
  const TrainingConfig& t = c.training;
  const ScheduleConfig& s = t.schedule;
  const OptimizerConfig& o = t.optimizer;
  if (rules.apply({"training.steps", "training.epochs"}) && t.steps.has_value() == t.epochs.has_value()) {
    if (t.steps)
      rules.broken("training.epochs", "steps and epochs are both given", "exactly one of them");
    else
      rules.broken("training.steps", "neither steps nor epochs is given", "exactly one of them", "steps: 1000");
  }
  if (t.steps && rules.apply({"training.steps", "training.schedule.name", "training.schedule.warmup_steps", "training.schedule.decay_steps"})) {
    const int64_t decay = s.name == LearningRateSchedule::kWsd ? s.decay_steps.value_or(1) : 0;
    const int64_t room = *t.steps - s.warmup_steps;
    if (room < 0 || (room == 0 && decay > 0))
      rules.broken("training.schedule.warmup_steps", concat("leaves too few of the run's ", *t.steps, " steps"),
                   concat("integer from 0 to ", *t.steps - std::min<int64_t>(decay, 1)), std::to_string(*t.steps - std::min<int64_t>(decay, 1)));
    else if (decay > room)
      rules.broken("training.schedule.decay_steps",
                   concat("longer than the steps that warmup_steps ", s.warmup_steps, " leaves of the run's ", *t.steps, " steps"),
                   concat("integer from 1 to ", room, ", or auto"), std::to_string(room));
  }
  if (rules.apply({"training.schedule.name", "training.schedule.final_learning_rate"}) && s.name == LearningRateSchedule::kExponential &&
      s.final_learning_rate.value_or(0) <= 0)
    rules.broken("training.schedule.final_learning_rate", "an exponential schedule never reaches it", "number above 0", "1e-05");
  if (rules.apply({"training.optimizer.learning_rate_scaling", "training.optimizer.reference_batch_size"}) && o.learning_rate_scaling != "none" &&
      !o.reference_batch_size)
    rules.broken("training.optimizer.learning_rate_scaling", "needs training.optimizer.reference_batch_size",
                 "none, or linear | sqrt with a reference_batch_size", "none");
  const auto need_validation = [&](const char* key, int64_t value) {
    if (value > 0 && c.data.validation.empty() && rules.apply({key, "data.validation"}))
      rules.broken(key, "nothing to evaluate: data.validation is empty", "0, or a non-empty data.validation", "0");
  };
  need_validation("training.evaluate.every", t.evaluate.every);
  need_validation("training.evaluate.batches", t.evaluate.batches);
  if (t.stop.patience && t.evaluate.every == 0 && rules.apply({"training.stop.patience", "training.evaluate.every"}))
    rules.broken("training.stop.patience", "training.evaluate.every is 0: the run evaluates only at its end", "null, or an evaluate.every from 1",
                 "null");
}

void check_retention(Rules& rules, const Config& c) {
  const CheckpointConfig& k = c.checkpoint;
  const bool best = k.keep_best > 0 && rules.apply({"checkpoint.keep_best", "checkpoint.every", "training.evaluate.every"});
  if (best && (k.every == 0 || c.training.evaluate.every == 0))
    rules.broken("checkpoint.keep_best",
                 concat(k.every == 0 ? "checkpoint.every" : "training.evaluate.every", " is 0: only the last checkpoint is evaluated"),
                 "0, or both of them from 1", "0");
  if (!k.keep_every || !k.every || !rules.apply({"checkpoint.keep_every", "checkpoint.every"})) return;
  if (k.every == 0)
    rules.broken("checkpoint.keep_every", "checkpoint.every is 0: no checkpoint is removed before the end", "null, or a checkpoint.every from 1",
                 "null");
  else if (*k.keep_every % *k.every != 0)
    rules.broken("checkpoint.keep_every", concat("not a multiple of checkpoint.every ", *k.every, ": no checkpoint is saved at some of these steps"),
                 "null, or multiples of checkpoint.every",
                 nearest(*k.keep_every, *k.every, static_cast<int64_t>(kMaxExtent), [&](int64_t n) { return n % *k.every == 0; }));
}

void check_loss_scale(Rules& rules, const LossScaleConfig& s) {
  const std::pair<const char*, int64_t> keys[] = {
      {"training.loss_scale.initial", s.initial}, {"training.loss_scale.minimum", s.minimum}, {"training.loss_scale.maximum", s.maximum}};
  const auto power = [](int64_t n) { return std::has_single_bit(static_cast<uint64_t>(n)); };
  bool powers = true;
  for (const auto& [key, value] : keys) {
    if (rules.apply({key}) && power(value)) continue;
    powers = false;
    if (rules.apply({key}))
      rules.broken(key, "not a power of two; other factors cause rounding", "powers of two",
                   concat(std::bit_floor(static_cast<uint64_t>(value)), " or ", std::bit_ceil(static_cast<uint64_t>(value))));
  }
  if (!powers) return;
  if (s.minimum > s.maximum)
    rules.broken("training.loss_scale.minimum", concat("above training.loss_scale.maximum ", s.maximum), concat("powers of two up to ", s.maximum),
                 std::to_string(s.maximum));
  else if (s.initial < s.minimum || s.initial > s.maximum)
    rules.broken("training.loss_scale.initial", concat("outside minimum ", s.minimum, " and maximum ", s.maximum),
                 concat("powers of two from ", s.minimum, " to ", s.maximum), std::to_string(std::clamp(s.initial, s.minimum, s.maximum)));
}

void check_precision(Rules& rules, const Config& c) {
  if (!rules.apply({"training.precision"})) return;
  if (c.training.precision == "fp16") check_loss_scale(rules, c.training.loss_scale);
  if (c.training.precision != "fp64") return;
  if (rules.apply({"run.device"}) && c.run.device == "cuda")
    rules.broken("run.device", "precision fp64 runs on the reference kernels of the CPU", "cpu, or precision fp32 | bf16 | fp16", "cpu");
  if (rules.apply({"training.reduce_dtype"}) && c.training.reduce_dtype != "auto")
    rules.broken("training.reduce_dtype", "precision fp64 reduces in fp64", "auto", "auto");
  if (rules.apply({"kernels.cpu_isa"}) && c.kernels.cpu_isa != "auto")
    rules.broken("kernels.cpu_isa", "precision fp64 runs on the reference kernels", "auto", "auto");
}

void check_attention(Rules& rules, const Config& c) {
  if (c.kernels.attention != "cudnn" || !rules.apply({"kernels.attention"})) return;
  if (rules.apply({"run.device"}) && c.run.device == "cpu")
    rules.broken("kernels.attention", "attention on CPUs has kernels of its own", "auto | builtin, or run.device cuda", "auto");
  if (rules.apply({"training.precision"}) && c.training.precision != "bf16" && c.training.precision != "fp16")
    rules.broken("kernels.attention", "cuDNN's attention computes in bf16 and fp16", "auto | builtin, or training.precision bf16 | fp16", "auto");
  if (rules.apply({"model.head_size"}) && (*c.model.head_size % 8 != 0 || *c.model.head_size > 128))
    rules.broken("kernels.attention", concat("model.head_size is ", *c.model.head_size), "auto | builtin, or head_size a multiple of 8 up to 128",
                 "auto");
  // Its deterministic backward takes no sequences of different lengths on compute capability 8 and 12, and on 9 a T x T matrix for each document.
  if (rules.apply({"data.document_mask"}) && c.data.document_mask)
    rules.broken("kernels.attention", "cuDNN's deterministic backward does not keep documents apart", "auto | builtin, or data.document_mask false",
                 "auto");
}

void check_graph(Rules& rules, const Config& c) {
  if (!c.kernels.cuda_graph || !rules.apply({"kernels.cuda_graph"})) return;
  if (rules.apply({"model.dropout"}) && c.model.dropout > 0)
    rules.broken("kernels.cuda_graph", "a captured step would repeat the same dropout masks", "false, or model.dropout 0", "false");
  if (rules.apply({"training.compression.method"}) && c.training.compression.method == CompressionMethod::kRandomK)
    rules.broken("kernels.cuda_graph", "a captured step would send the same elements in every step", "false, or another training.compression.method",
                 "false");
  if (rules.apply({"observe.anomalies.policy"}) && c.observe.anomalies.policy == AnomalyPolicy::kRerun)
    rules.broken("kernels.cuda_graph", "observe.anomalies.policy rerun records what ranks exchange in a step, which a graph cannot do",
                 "false, or observe.anomalies.policy warn | skip | stop", "false");
  if (rules.apply({"run.ranks_per_gpu"}) && c.run.ranks_per_gpu > 1)
    rules.broken("kernels.cuda_graph", "ranks that share a GPU communicate through host memory, which a graph cannot capture",
                 "false, or ranks_per_gpu 1", "false");
}

/// A sample's text grows by a token at a time, so its buffers are not among those that a step has reserved.
void check_samples_memory(Rules& rules, const Config& c) {
  if (c.observe.samples.every > 0 && c.parallel.register_buffers && rules.apply({"observe.samples.every", "parallel.register_buffers"}))
    rules.broken("parallel.register_buffers", "observe.samples needs memory that cannot be registered in advance",
                 "false, or observe.samples.every 0", "false");
}

/// Keys that need a GPU for each rank.
void check_shared_gpus(Rules& rules, const Config& c) {
  if (c.run.ranks_per_gpu <= 1 || !rules.apply({"run.ranks_per_gpu"})) return;
  if (c.kernels.tuning_file != "none" && rules.apply({"kernels.tuning_file"}))
    rules.broken("kernels.tuning_file", "ranks that share a GPU would time the products of one another", "none, or ranks_per_gpu 1", "none");
  if (c.parallel.communication_sms > 0 && rules.apply({"parallel.communication_sms"}))
    rules.broken("parallel.communication_sms", "ranks that share a GPU communicate through host memory", "0, or ranks_per_gpu 1", "0");
  if (c.parallel.register_buffers && rules.apply({"parallel.register_buffers"}))
    rules.broken("parallel.register_buffers", "ranks that share a GPU communicate through host memory", "false, or ranks_per_gpu 1", "false");
}

void check_collectives(Rules& rules, const Config& c) {
  if (c.parallel.collectives == Collectives::kLibrary || !rules.apply({"parallel.collectives", "run.device", "run.ranks_per_gpu"})) return;
  if (c.run.device == "cuda" && c.run.ranks_per_gpu == 1)
    rules.broken("parallel.collectives", "GPUs communicate through NCCL, which chooses its own algorithms", "library, or run.device cpu", "library");
}

void check_data(Rules& rules, const Config& c) {
  const DataConfig& d = c.data;
  if (d.weights && rules.apply({"data.weights", "data.train"}) && d.weights->size() != d.train.size())
    rules.broken("data.weights",
                 concat(counted(d.weights->size(), "weight"), " for the ", counted(d.train.size(), "entry", "entries"), " of data.train"),
                 concat("a list of ", d.train.size(), ", or auto"), "auto");
  if (d.weights && c.training.epochs && rules.apply({"data.weights", "training.epochs"}))
    rules.broken("training.epochs", "with data.weights each source is repeated independently, so the blend has no epochs",
                 "training.steps, or data.weights auto", "steps: 1000");
  if (d.packing != Packing::kNone && !d.document_mask && rules.apply({"data.packing", "data.document_mask"}))
    rules.broken("data.packing", "documents that are put together have nothing to do with each other, so they must not attend to each other",
                 "none, or data.document_mask true", "none");
  if (d.balance != Balance::kNone && !d.document_mask && rules.apply({"data.balance", "data.document_mask"}))
    rules.broken("data.balance", "without a document mask every sequence costs the same", "none, or data.document_mask true", "none");
  if (d.balance != Balance::kNone && c.model.dropout > 0 && rules.apply({"data.balance", "model.dropout"}))
    rules.broken("data.balance", "dropout masks follow the place in the batch, so a sequence's mask would depend on the number of ranks",
                 "none, or model.dropout 0", "none");
  if (!rules.apply({"data.validation"})) return;
  for (const std::string& text : d.validation) {
    const ValidationEntry entry = validation_entry(text);
    if (entry.path.empty() || (entry.named && entry.name.empty()))
      rules.broken("data.validation", concat("'", text, "' lacks a name or a path"), "PATH or name=PATH; use ./PATH for a path that contains '='");
  }
}

void check_observe(Rules& rules, const Config& c) {
  const PrometheusConfig& p = c.observe.prometheus;
  std::array<unsigned char, sizeof(in6_addr)> bytes;
  const bool numeric = ::inet_pton(AF_INET, p.address.c_str(), bytes.data()) == 1 || ::inet_pton(AF_INET6, p.address.c_str(), bytes.data()) == 1;
  if (p.port && rules.apply({"observe.prometheus.address"}) && !numeric)
    rules.broken("observe.prometheus.address", "not an IPv4 or IPv6 address in digits", "127.0.0.1, ::1, 0.0.0.0, or an address of rank 0's host",
                 p.address == "localhost" ? "127.0.0.1" : "");
  if (p.textfile && rules.apply({"observe.prometheus.textfile"}) && !p.textfile->ends_with(".prom"))
    rules.broken("observe.prometheus.textfile", "node_exporter reads only files whose names end with .prom", "a path that ends with .prom, or null",
                 *p.textfile + ".prom");
  if (c.observe.samples.every > 0 && c.observe.samples.prompts.empty() && rules.apply({"observe.samples.every", "observe.samples.prompts"}))
    rules.broken("observe.samples.prompts", "there is no text to continue, and observe.samples.every is set", "list of prompts of one token or more",
                 "[Once upon a time]");
  const bool* const board = std::get_if<bool>(&c.observe.tensorboard);
  if (c.observe.histograms.every > 0 && board != nullptr && !*board && rules.apply({"observe.histograms.every", "observe.tensorboard"}))
    rules.broken("observe.histograms.every", "histograms are written to the event files of observe.tensorboard only, which is false",
                 "0, or observe.tensorboard true | path", "0");
}

void check_names(Rules& rules, const Config& c) {
  const auto is_control = [](char letter) { return static_cast<unsigned char>(letter) < 0x20 || letter == 0x7F; };
  if (rules.apply({"run.name"}) && std::ranges::any_of(c.run.name, is_control))
    rules.broken("run.name", "contains a control character, which would reach terminals and dashboards", "text without control characters");
  else if (rules.apply({"run.name"}) && (c.run.name.empty() || c.run.name.find('/') != c.run.name.npos || c.run.name == "." || c.run.name == ".."))
    rules.broken("run.name", "not a valid directory name", "text without '/'");
}

/// Clamps every integer to its range, so that rules can compute with out-of-range values, which are reported separately.
struct Clamp {
  void operator()(const Field& field, int64_t& value) const {
    const double top = std::min(field.max, 9e18);
    value = std::clamp(value, static_cast<int64_t>(std::max(field.min, -9e18)), static_cast<int64_t>(top));
  }
  void operator()(const Field& field, Auto<int64_t>& value) const {
    if (value) (*this)(field, *value);
  }
  template <class T>
  void operator()(const Field&, T&) const {}
  template <class Section>
  void section(const char*, const char*, Section& part) const {
    visit(*this, part);
  }
};

}  // namespace

std::string islands_text(const ParallelConfig& p) { return p.islands > 1 ? concat("islands ", p.islands, " x ") : ""; }

void check(const Config& config, const Sources& sources, Violations& violations) {
  check_fields(table_of(config), sources, violations);
  Rules rules(config, sources, violations);
  Config sound = config;
  Clamp clamp;
  visit(clamp, sound);
  sound = with_derived_sizes(sound);
  check_names(rules, sound);
  check_model(rules, config, sound);
  check_tensor(rules, sound);
  check_pipeline(rules, sound);
  check_data_axis(rules, sound);
  check_batch(rules, sound);
  check_recompute(rules, sound.training);
  check_training(rules, sound);
  check_retention(rules, sound);
  check_data(rules, sound);
  check_precision(rules, sound);
  check_communication(rules, sound);
  check_elastic(rules, sound);
  check_peers(rules, sound);
  check_privacy(rules, sound);
  check_reroute(rules, sound);
  check_federation(rules, sound);
  check_attention(rules, sound);
  check_graph(rules, sound);
  check_samples_memory(rules, sound);
  check_shared_gpus(rules, sound);
  check_collectives(rules, sound);
  check_observe(rules, sound);
  rules.without_effect();
}

}  // namespace trireme
