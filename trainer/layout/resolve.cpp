#include "trainer/layout/resolve.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "kernels/core/optimizer_traits.h"
#include "trainer/config/check.h"
#include "trainer/config/derived_sizes.h"
#include "trainer/config/fields.h"
#include "trainer/layout/elastic.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/model/declare.h"
#include "trainer/model/part_profile.h"

namespace trireme {
namespace {

/// Describes the legal layouts of `world` ranks that are closest to the configured one.
std::string nearest_layouts(const Config& config, int64_t world) {
  constexpr size_t kShown = 3;
  struct Degrees {
    double distance;
    int64_t tensor, pipeline, data;
  };
  const auto change = [](int64_t from, int64_t to) { return std::abs(std::log(static_cast<double>(to) / static_cast<double>(from))); };
  std::vector<Degrees> layouts;
  if (world % config.parallel.islands != 0) return "";
  world /= config.parallel.islands;
  for (int64_t tensor = 1; tensor <= std::min(world, config.model.heads); ++tensor)
    for (int64_t pipeline = 1; world % tensor == 0 && pipeline <= std::min(world / tensor, config.model.layers); ++pipeline) {
      if (world / tensor % pipeline != 0) continue;
      Config candidate = config;
      const int64_t data = world / tensor / pipeline;
      candidate.parallel.tensor = tensor;
      candidate.parallel.pipeline = pipeline;
      candidate.parallel.data = data;
      candidate.parallel.layers_per_stage.reset();
      if (candidate.parallel.schedule == "file") {  // a schedule file fits only one layout
        candidate.parallel.schedule = "1f1b";
        candidate.parallel.schedule_file = "none";
        candidate.parallel.virtual_stages = 1;
      }
      Violations violations;
      check(candidate, {}, violations);
      const ParallelConfig& asked = config.parallel;
      if (violations.empty())
        layouts.push_back(
            {change(asked.tensor, tensor) + change(asked.pipeline, pipeline) + change(asked.data.value_or(data), data), tensor, pipeline, data});
    }
  std::stable_sort(layouts.begin(), layouts.end(), [](const Degrees& a, const Degrees& b) { return a.distance < b.distance; });
  std::string out;
  for (size_t i = 0; i < std::min(kShown, layouts.size()); ++i)
    out += concat(i > 0 ? " or " : "", islands_text(config.parallel), "tensor ", layouts[i].tensor, " x pipeline ", layouts[i].pipeline, " x data ",
                  layouts[i].data);
  return out;
}

/// Whether a pattern has only * and ?: fnmatch() knows more.
bool is_plain(const std::string& pattern) { return pattern.find_first_of("[\\") == pattern.npos; }

/// Each entry of adapter.targets names a layer, and there is one.
void check_adapter(const ModelConfig& model, const Sources& sources, Violations& violations) {
  constexpr const char* kKey = "adapter.targets";
  if (model.adapter.rank == 0) return;
  std::vector<std::string> layers;
  std::string shown;
  for (const std::string& layer : linear_layers(model)) {
    layers.push_back(layer.substr(layer.rfind('.') + 1));
    shown += concat(shown.empty() ? "" : ", ", layers.back());
  }
  for (int64_t block = 0; block < model.layers; ++block)
    for (const std::string& layer : linear_layers(model)) layers.push_back(concat(block_name(block), ".", layer));
  const std::string allowed = concat("patterns of ", shown, ", and of names such as blocks.0.attention.query");
  for (const std::string& pattern : model.adapter.targets)
    if (!is_plain(pattern) || std::ranges::none_of(layers, [&](const std::string& layer) { return is_target(pattern, layer); }))
      violations.add({sources.locate(kKey), kKey, pattern, "names no linear layer of a block", allowed,
                      pattern.find('*') == pattern.npos ? nearest_word(pattern, layers) : ""});
  if (model.adapter.targets.empty())
    violations.add({sources.locate(kKey), kKey, "[]", "names no layer, which leaves nothing to adapt", allowed, "[\"*\"]"});
}

/// Each entry of model.frozen names parameters, all of a matrix if it names a part, and not all of the model.
void check_frozen(const ModelConfig& model, const Sources& sources, Violations& violations) {
  constexpr const char* kKey = "model.frozen";
  const auto broken = [&](const std::string& value, const std::string& rule, const std::string& allowed, const std::string& nearest) {
    violations.add({sources.locate(kKey), kKey, value, rule, allowed, nearest});
  };
  if (model.frozen.empty()) return;
  std::vector<std::string> names;
  bool trains = model.adapter.rank > 0;
  for (const std::vector<std::string>& stacked : stacked_names(model)) {
    if (is_adapter(stacked.front())) continue;  // never frozen
    names.insert(names.end(), stacked.begin(), stacked.end());
    const auto frozen = std::ranges::count_if(stacked, [&](const std::string& name) { return is_frozen(model, name); });
    trains = trains || frozen < std::ssize(stacked);
    if (frozen == 0 || frozen == std::ssize(stacked)) continue;
    std::string all;
    for (const std::string& name : stacked) all += concat(all.empty() ? "" : ", ", name);
    return broken("", concat("names some of ", all, ", which are one matrix"), "all of them, or none", "");
  }
  std::string shown;
  for (const std::string& name : names)
    if (in_block(name).value_or(InBlock{}).block == 0) shown += concat(shown.empty() ? "" : ", ", name);
  for (const std::string& pattern : model.frozen) {
    ModelConfig one = model;
    one.frozen = {pattern};
    if (!is_plain(pattern) || std::ranges::none_of(names, [&](const std::string& name) { return is_frozen(one, name); }))
      broken(pattern, "names no parameter of the model", concat("patterns of these names and of those of other blocks: ", shown),
             pattern.find('*') == pattern.npos ? nearest_word(pattern, names) : "");
  }
  if (!trains) broken("", "names every parameter, which leaves nothing to train", "a part of them", "");
}

/// An optimizer of matrices has some to update.
void check_matrices(const Config& config, const Sources& sources, Violations& violations) {
  const OneOf<Optimizer>& optimizer = config.training.optimizer.name;
  if (!traits_of(optimizer.value()).updates_matrices) return;
  if (std::ranges::any_of(whole_model(config.model), [](const ParamSpec& spec) { return spec.is_hidden_matrix && spec.trainable; })) return;
  violations.add({sources.locate("training.optimizer.name"), "training.optimizer.name", optimizer.text(),
                  "updates matrices of linear layers, and all of them are frozen (model.frozen, adapter.rank)", "an optimizer of single elements",
                  "adamw"});
}

void resolve_data(Config& config, std::optional<int64_t> world, const Sources& sources) {
  TRIREME_CHECK(!world || *world > 0, *world);
  ParallelConfig& p = config.parallel;
  const int64_t model_ranks = p.islands * p.tensor * p.pipeline;  // check() has limited them to heads and layers
  const std::string shown = shown_value(table_of(config).at("parallel.data"));
  if (!p.data) p.data = world && *world % model_ranks == 0 ? *world / model_ranks : 1;
  if (world && *world != model_ranks * *p.data && std::ranges::count(legal_worlds(config), *world) > 0)
    config = with_data_ranks(config, *world / model_ranks).value();
  if (!world || *world == model_ranks * *p.data) return;
  Violations violations;
  violations.add({sources.locate("parallel.data"), "parallel.data", shown,
                  concat(islands_text(p), "tensor ", p.tensor, " x pipeline ", p.pipeline, " x data ", *p.data, " = ",
                         counted(model_ranks * *p.data, "rank"), ", but ", *world, *world == 1 ? " was started" : " were started"),
                  concat("a product of ", *world, ", or starting ", counted(model_ranks * *p.data, "rank")), nearest_layouts(config, *world)});
  violations.raise(sources);
}

/// Splits the layers by the matrix-product weights of each block and of the head, as a measure of their work.
std::vector<int64_t> balanced_layers(const Config& config) {
  PartProfiles profiles(config.model);
  std::vector<double> blocks;
  double head = 0;
  for (const Part& part : profiles.parts()) {
    double weights = 0;
    for (const OperationRecord& operation : profiles.of(part, {}).evaluation.operations)
      if (operation.kind == OperationKind::kProduct) weights += static_cast<double>(operation.n) * static_cast<double>(operation.k);
    if (part.kind == PartKind::kBlock) blocks.push_back(weights);
    if (part.kind == PartKind::kHead) head = weights;
  }
  return balance_layers(blocks, 0, head, config.parallel.pipeline * *config.parallel.virtual_stages, false);
}

}  // namespace

std::vector<int64_t> balance_layers(const std::vector<double>& cost_of_layer, double first_extra, double last_extra, int64_t stages,
                                    bool empty_ends) {
  const auto layers = static_cast<int64_t>(cost_of_layer.size());
  TRIREME_CHECK(stages >= 1 && stages <= layers, stages, " stages, ", layers, " layers");
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> sum(static_cast<size_t>(layers) + 1, 0);
  for (int64_t i = 0; i < layers; ++i) sum[static_cast<size_t>(i) + 1] = sum[static_cast<size_t>(i)] + cost_of_layer[static_cast<size_t>(i)];
  const auto stage_cost = [&](int64_t stage, int64_t begin, int64_t end) {
    return sum[static_cast<size_t>(end)] - sum[static_cast<size_t>(begin)] + (stage == 0 ? first_extra : 0) + (stage == stages - 1 ? last_extra : 0);
  };
  // best[s][e]: the best total of the first s stages over the first e layers; from[s][e]: the first layer of stage s - 1 in that split.
  const auto width = static_cast<size_t>(layers) + 1;
  std::vector<double> best;
  std::vector<int64_t> from(static_cast<size_t>(stages + 1) * width);
  // A longer stage costs more, so a search from the shortest one ends at a stage that costs more than `most` of the best total so far.
  const auto solve = [&](const auto& total, const auto& most) {
    best.assign(static_cast<size_t>(stages + 1) * width, kNever);
    best[0] = 0;
    for (int64_t s = 1; s <= stages; ++s)
      for (int64_t end = 0; end <= layers; ++end)
        for (int64_t begin = end - (empty_ends && (s == 1 || s == stages) ? 0 : 1); begin >= 0; --begin) {
          const size_t at = static_cast<size_t>(s) * width + static_cast<size_t>(end);
          const double cost = stage_cost(s - 1, begin, end);
          if (cost > most(best[at])) break;
          const double value = total(best[static_cast<size_t>(s - 1) * width + static_cast<size_t>(begin)], cost);
          if (value > best[at] || value == kNever) continue;  // ties: the last, whose early stages, with more micro-batches in flight, are smaller
          best[at] = value;
          from[at] = begin;
        }
    return best.back();
  };
  const double largest = solve([](double before, double cost) { return std::max(before, cost); }, [](double known) { return known; });
  solve([](double before, double cost) { return before + cost * cost; }, [&](double) { return largest; });
  std::vector<int64_t> split(static_cast<size_t>(stages));
  for (int64_t s = stages, end = layers; s > 0; --s) {
    const int64_t begin = from[static_cast<size_t>(s) * width + static_cast<size_t>(end)];
    split[static_cast<size_t>(s - 1)] = end - begin;
    end = begin;
  }
  return split;
}

double hang_seconds(const Config& config, bool gpus, bool one_host) {
  // InfiniBand repeats a lost message for 20 to 30 s, a parallel file system may stall as long, and CUDA loads kernels at their first launch.
  return config.resilience.hang_seconds.value_or(gpus || !one_host ? 120 : 10);
}

Config resolve(const Config& config, std::optional<int64_t> world_size, const Sources& sources) {
  Violations violations;
  check(config, sources, violations);
  violations.raise(sources);
  Config resolved = with_derived_sizes(config);
  check_frozen(resolved.model, sources, violations);
  check_adapter(resolved.model, sources, violations);
  check_matrices(resolved, sources, violations);
  violations.raise(sources);
  resolve_data(resolved, world_size, sources);
  check(resolved, sources, violations);  // the rules that need `data`, which what follows relies on
  violations.raise(sources);
  ParallelConfig& p = resolved.parallel;
  if (resolved.run.device == DeviceType::kAuto && resolved.training.precision == Arithmetic::kFp64)
    resolved.run.device = DeviceType::kCpu;  // otherwise the run detects GPUs
  if (resolved.training.reduce_dtype == ReduceDtype::kAuto && resolved.training.precision != Arithmetic::kFp64)
    resolved.training.reduce_dtype = ReduceDtype::kFp32;
  if (p.gradient_accumulation == GradientAccumulation::kAuto)
    p.gradient_accumulation =
        zero_policy(p).gradients_resident || needs_full_gradients(resolved.training.compression) || adds_noise_on_each_rank(resolved)
            ? GradientAccumulation::kFull
            : GradientAccumulation::kSharded;
  if (!p.layers_per_stage) p.layers_per_stage = balanced_layers(resolved);
  TrainingConfig& t = resolved.training;
  if (averages_elastically(t) && !t.asynchronous.moving_rate) t.asynchronous.moving_rate = 0.9 / static_cast<double>(p.islands);
  AggregationConfig& aggregation = resolved.security.aggregation;
  if (is_robust(resolved.security) && !aggregation.momentum)
    aggregation.momentum = aggregation.rule == AggregationRule::kCenteredClipping ? 0.9 : 0.0;
  if (const OptimizerTraits& traits = traits_of(t.optimizer.name.value()); traits.states > 0 && !t.optimizer.beta2)
    t.optimizer.beta2 = traits.default_beta2;
  if (t.schedule.name == LearningRateSchedule::kWsd && !t.schedule.decay_steps && t.steps)
    t.schedule.decay_steps = std::min(std::max<int64_t>(*t.steps / 10, 1), *t.steps - t.schedule.warmup_steps);
  return resolved;
}

}  // namespace trireme
