#include "trainer/config/check.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <functional>
#include <numeric>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "parallel/pipeline/schedule.h"
#include "trainer/config/check_communication.h"
#include "trainer/config/check_federation.h"
#include "trainer/config/check_fields.h"
#include "trainer/config/check_reroute.h"
#include "trainer/config/clashes.h"
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
  if (rules.apply({"model.max_positions", "training.sequence_length"}) && *m.max_positions < length)
    rules.broken("model.max_positions", concat("shorter than training.sequence_length ", length), concat("integer from ", length, ", or auto"),
                 std::to_string(length));
  const auto always = [&](bool has, bool set, const char* key, const char* what) {
    if (has && !set && rules.given(key) && rules.apply({"model.architecture", key}))
      rules.broken(key, concat("architecture ", m.architecture, " always has these ", what), "true", "true, or remove the key");
  };
  always(m.preset().biases, given.model.qkv_bias, "model.qkv_bias", "biases");
  always(m.preset().head_norms, given.model.qk_norm, "model.qk_norm", "norms");
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
  const bool has_split = c.parallel.layers_per_stage && rules.apply({"parallel.layers_per_stage"});
  // A split with two stages without layers has up to two stages more than layers.
  const int64_t without_layers = has_split && static_cast<int64_t>(c.parallel.layers_per_stage->size()) == stages ? 2 : 0;
  if (stages > c.model.layers + without_layers) check_stages(rules, c);
  if (has_split) check_split(rules, c, *c.parallel.layers_per_stage);
}

/// The second copy of the parameters (ParamStore).
void check_secondary(Rules& rules, const ParallelConfig& p) {
  if (p.secondary_shards == 0 || p.zero_stage != 3 || p.reshard != Reshard::kAfterUse || !p.data || *p.data % p.replicate != 0) return;
  if (!rules.apply({"parallel.secondary_shards", "parallel.zero_stage", "parallel.reshard", "parallel.data", "parallel.replicate"})) return;
  const int64_t shards = *p.data / p.replicate;
  const auto smaller = [&](int64_t n) { return n > 1 && n < shards && shards % n == 0; };
  if (smaller(p.secondary_shards)) return;
  rules.broken("parallel.secondary_shards", concat("not a part of the ", shards, " shards that has fewer ranks and divides them"),
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
  if (p.data && rules.apply({"parallel.data", "parallel.replicate"}) && *p.data % p.replicate != 0)
    rules.broken("parallel.replicate", concat("does not divide parallel.data ", *p.data), "divisors of data",
                 nearest(p.replicate, 1, *p.data, [&](int64_t n) { return *p.data % n == 0; }));
  check_secondary(rules, p);
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
}

void check_retention(Rules& rules, const CheckpointConfig& k) {
  const int64_t every = k.every.value_or(0);
  if (k.keep_every && every > 0 && *k.keep_every % every != 0 && rules.apply({"checkpoint.keep_every", "checkpoint.every"}))
    rules.broken("checkpoint.keep_every", concat("not a multiple of checkpoint.every ", every, ": no checkpoint is saved at some of these steps"),
                 "null, or multiples of checkpoint.every",
                 nearest(*k.keep_every, every, static_cast<int64_t>(kMaxExtent), [&](int64_t n) { return n % every == 0; }));
}

void check_loss_scale(Rules& rules, const Config& c) {
  const LossScaleConfig& s = c.training.loss_scale;
  if (c.training.precision != Arithmetic::kFp16 || !rules.apply({"training.precision"})) return;
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

void check_data(Rules& rules, const Config& c) {
  const DataConfig& d = c.data;
  if (d.weights && rules.apply({"data.weights", "data.train"}) && d.weights->size() != d.train.size())
    rules.broken("data.weights",
                 concat(counted(d.weights->size(), "weight"), " for the ", counted(d.train.size(), "entry", "entries"), " of data.train"),
                 concat("a list of ", d.train.size(), ", or auto"), "auto");
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
  check_training(rules, sound);
  check_retention(rules, sound.checkpoint);
  check_loss_scale(rules, sound);
  check_data(rules, sound);
  check_communication(rules, sound);
  check_reroute(rules, sound);
  check_federation(rules, sound);
  check_clashes(rules, sound);
  check_observe(rules, sound);
  rules.without_effect();
}

}  // namespace trireme
