#include "trainer/verify/clone.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/tensor/vocab.h"
#include "trainer/config/fields.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/verify/difference.h"

namespace trireme {
namespace {

constexpr int64_t kHeadSize = 4;  // smallest size in which RoPE's halves and neighbouring pairs differ
constexpr int64_t kLeastSequence = 12;
constexpr int64_t kLeastVocabulary = 53;
constexpr int64_t kLeastMicrobatches = 2;
constexpr int64_t kLeastBatch = 6;
constexpr int64_t kMostRanks = 64;
constexpr int64_t kMostSequences = 256;

void refuse_many_ranks(const Layout& layout) {
  if (layout.world() <= kMostRanks) return;
  const int64_t model_ranks = layout.tensor * layout.pipeline;
  throw ConfigError(
      concat("--layouts: '", layout.text, "' has ", layout.world(), " ranks, but verify runs at most ", kMostRanks, " as threads; ",
             model_ranks <= kMostRanks ? concat("use a smaller data degree, up to dp", kMostRanks / model_ranks) : "use smaller degrees"));
}

void set_recompute(TrainingConfig& t, RecomputeMode recompute) {
  t.recompute = recompute;
  t.recompute_every = 1;
  t.recompute_budget.reset();
}

/// Checks the layout by the configuration's own rules, for its own sizes.
void check_against(const Config& config, const Layout& layout) {
  Config candidate = config;
  candidate.parallel = layout.parallel();
  // With stages without layers, a model may have fewer layers than stages.
  const auto& split = config.parallel.layers_per_stage;
  if (layout.stages() > config.model.layers && split && static_cast<int64_t>(split->size()) == layout.stages())
    candidate.parallel.layers_per_stage = split;
  candidate.training.micro_batch_size = layout.micro_batch;
  candidate.training.global_batch_size = layout.micro_batch * layout.data;
  candidate.training.precision = Arithmetic::kFp64;
  candidate.training.reduce_dtype = ReduceDtype::kAuto;
  candidate.training.loss_scale = {};
  candidate.training.compression = {};
  candidate.training.local = {};
  candidate.training.asynchronous = {};
  candidate.security = {};
  // Sequence parallelism must divide micro_batch_size x sequence_length, and the layout sets its own micro-batch size.
  if (layout.sequence_parallel)
    candidate.training.sequence_length = std::max(layout.tensor, candidate.training.sequence_length / layout.tensor * layout.tensor);
  candidate.run.device = DeviceType::kCpu;
  candidate.resilience = {};
  candidate.kernels = {};
  if (layout.recompute) set_recompute(candidate.training, *layout.recompute);
  try {
    resolve(candidate);
  } catch (const ConfigError& error) {
    throw ConfigError(concat("--layouts: '", layout.text, "' is invalid for this model: ", error.what()));
  }
}

/// Least common multiple of `of` over the layouts. Errors: ConfigError if it is too large for a clone.
int64_t least_common(const std::vector<Layout>& layouts, int64_t (*of)(const Layout&)) {
  int64_t all = 1;
  for (const Layout& layout : layouts) {
    all = std::lcm(all, of(layout));
    if (all > kMostSequences)
      throw ConfigError(concat("--layouts: no batch of up to ", kMostSequences, " short sequences is divisible by the degrees of all layouts up to '",
                               layout.text, "'; verify them in several calls"));
  }
  return all;
}

/// The smallest number of kv heads, with as many query heads each, that every tensor degree splits or replicates as it does the configuration's.
int64_t kv_heads_like(int64_t kv_heads, int64_t group, const std::vector<Layout>& layouts) {
  for (int64_t fewer = 1; fewer < kv_heads; ++fewer) {
    const bool alike = std::ranges::all_of(layouts, [&](const Layout& layout) {
      const int64_t t = layout.tensor;
      return (fewer < t) == (kv_heads < t) && (fewer % t == 0 || t % fewer == 0) && group * fewer % t == 0;
    });
    // Reducing several kv heads to one would turn grouped-query attention into multi-query attention.
    if (alike && !(fewer == 1 && kv_heads > 1)) return fewer;
  }
  return kv_heads;
}

int64_t vocabulary_like(int64_t vocabulary, const std::vector<Layout>& layouts) {
  for (int64_t smaller = kLeastVocabulary; smaller < vocabulary; ++smaller) {
    const bool alike = smaller % 2 == vocabulary % 2 && std::ranges::all_of(layouts, [&](const Layout& layout) {
                         return (smaller % layout.tensor == 0) == (vocabulary % layout.tensor == 0);
                       });
    if (alike) return smaller;
  }
  return vocabulary;
}

int64_t hidden_like(int64_t hidden) { return hidden % 8 == 0 ? 24 : hidden % 2 == 0 ? 26 : 25; }

/// Shrinks the window. It stays shorter than the sequences if it was, and on all layers or only on some, as configured.
void shrink_window(ModelConfig& m, int64_t users_layers, int64_t users_sequence) {
  constexpr int64_t kWindow = 5;  // shorter than sequences of 12 and than some of their documents
  if (!m.window) return;
  if (*m.window < users_sequence) m.window = std::min(*m.window, kWindow);
  if (!m.window_layers) return;
  const std::vector<int64_t> users = std::exchange(*m.window_layers, {});
  for (int64_t b = 0; b < m.layers; ++b)
    if (std::ranges::binary_search(users, b * users_layers / m.layers)) m.window_layers->push_back(b);
  const bool mixed = static_cast<int64_t>(users.size()) < users_layers, all = static_cast<int64_t>(m.window_layers->size()) == m.layers;
  if (m.window_layers->empty() || (mixed && all && m.layers > 1)) m.window_layers = {m.layers - 1};
}

/// The block that stands for block `block` of a model of `layers` blocks in one of `all`; the last for the last.
int64_t block_like(int64_t block, int64_t layers, int64_t all) { return block + 1 == layers ? all - 1 : block * all / layers; }

/// The same parameter of another block; the name itself if it is of no block.
std::string of_block(const std::string& name, const std::function<int64_t(int64_t)>& change) {
  const auto inside = in_block(name);
  return inside ? concat(block_name(change(inside->block)), ".", inside->name) : name;
}

/// What of the clone is frozen: of each block what is frozen in a block of `users` that it stands for. If that left nothing frozen, or nothing to train,
/// the blocks that it skips decide.
std::vector<std::string> frozen_like(const ModelConfig& users, const ModelConfig& clone) {
  if (users.frozen.empty()) return {};
  std::set<std::string> frozen, trained;
  for (const std::string& name : parameter_order(clone)) {
    const std::string stands_for = of_block(name, [&](int64_t block) { return block_like(block, clone.layers, users.layers); });
    (is_frozen(users, stands_for) ? frozen : trained).insert(name);
  }
  const bool no_frozen = frozen.empty(), no_trained = trained.empty();
  for (const std::string& name : parameter_order(users)) {
    const std::string like = of_block(name, [&](int64_t block) { return block_like(block, users.layers, clone.layers); });
    if (no_frozen && is_frozen(users, name)) frozen.insert(like);
    if (no_trained && !is_frozen(users, name)) frozen.erase(like);
  }
  return {frozen.begin(), frozen.end()};
}

/// The adapters of the clone: of each block those of a block of `users` that it stands for, or of all blocks if that left none. Their scale stays.
AdapterConfig adapter_like(const ModelConfig& users, const ModelConfig& clone) {
  constexpr int64_t kRank = 3;
  AdapterConfig adapter = users.adapter;
  if (adapter.rank == 0) return adapter;
  adapter.rank = std::min(adapter.rank, kRank);
  adapter.alpha *= adapter_scale(users.adapter) / adapter_scale(adapter);
  adapter.targets.clear();
  const auto add = [&](int64_t block, int64_t like) {
    for (const std::string& layer : block_spec(users, block).adapter.layers) adapter.targets.push_back(concat(block_name(like), ".", layer));
  };
  for (int64_t like = 0; like < clone.layers; ++like) add(block_like(like, clone.layers, users.layers), like);
  if (!adapter.targets.empty()) return adapter;
  for (int64_t block = 0; block < users.layers; ++block) add(block, block_like(block, users.layers, clone.layers));
  return adapter;
}

void shrink_model(ModelConfig& m, int64_t users_sequence, int64_t sequence, const std::vector<Layout>& layouts) {
  const int64_t tensor = least_common(layouts, [](const Layout& layout) { return layout.tensor; });
  const int64_t group = m.heads / *m.kv_heads;
  m.kv_heads = kv_heads_like(*m.kv_heads, group, layouts);
  m.heads = group * *m.kv_heads;
  m.head_size = std::min(*m.head_size, kHeadSize - (*m.head_size % 2));
  if (m.rotated_share() < 1) {  // of twice as many elements RoPE turns half
    m.head_size = 2 * kHeadSize;
    m.rope_share = 0.5;
  }
  const double ratio = static_cast<double>(*m.ffn_size) / static_cast<double>(m.hidden_size);
  m.hidden_size = std::min(m.hidden_size, hidden_like(m.hidden_size));
  const auto ffn = static_cast<int64_t>(std::min(ratio, 8.0) * static_cast<double>(m.hidden_size));
  m.ffn_size = std::min(*m.ffn_size, std::max<int64_t>(1, (ffn + tensor / 2) / tensor) * tensor);
  m.vocab_size = vocabulary_like(*m.vocab_size, layouts);
  int64_t stages = 1;
  for (const Layout& layout : layouts) stages = std::max(stages, layout.stages());
  const int64_t users_layers = std::exchange(m.layers, std::min(m.layers, stages + 1));
  shrink_window(m, users_layers, users_sequence);
  const bool spare_positions = *m.max_positions > users_sequence;
  m.max_positions = sequence + (spare_positions ? 1 : 0);
  // llama3 scaling depends on positions: the short sequences must be scaled as strongly as the long ones.
  if (m.rope_scaling.type == RopeScaling::kLlama3) m.rope_scaling.original_max_positions = std::min(m.rope_scaling.original_max_positions, sequence);
  // With nearly uniform logits all gradients would be nearly equal, and a wrong one would not stand out.
  m.init_std = 0.2;
}

/// `uneven`: data ranks get different numbers of micro-batches, for which they need more of them than pipeline ranks.
void shrink_training(TrainingConfig& t, int64_t sequence, const std::vector<Layout>& layouts, bool uneven) {
  t.epochs.reset();
  t.steps = 10;
  t.initial_weights = "none";
  t.sequence_length = sequence;
  t.micro_batch_size = 1;
  const int64_t unit = least_common(layouts, [](const Layout& layout) { return layout.data * layout.micro_batch; });
  t.global_batch_size = unit;
  const auto too_few = [&](const Layout& layout) {
    const int64_t least = uneven ? std::max(kLeastMicrobatches, layout.pipeline + 1) : kLeastMicrobatches;
    return t.global_batch_size < least * layout.data * layout.micro_batch;
  };
  while (t.global_batch_size < kLeastBatch || std::ranges::any_of(layouts, too_few)) t.global_batch_size += unit;
  t.precision = Arithmetic::kFp64;
  t.reduce_dtype = ReduceDtype::kAuto;
  if (t.recompute == RecomputeMode::kBudget) {  // a byte budget does not apply to the clone: mix kept and recomputed blocks
    t.recompute = RecomputeMode::kSelective;
    t.recompute_budget.reset();
    t.recompute_every = 2;
  }
  t.logits_chunk = 5;                                                         // does not divide the rows of a micro-batch
  if (t.gradient_clip > 0) t.gradient_clip = std::min(t.gradient_clip, 0.5);  // low enough to clip
  t.loss_scale = {};
  t.compression = {};  // what a message contains depends on the layout
  t.local = {};        // the layouts are those of one island
  t.asynchronous = {};
  constexpr double kDecay = 0.15;  // low enough to take effect within three steps, despite the warm-up
  if (t.ema.decay) t.ema.decay = std::min(*t.ema.decay, kDecay);
  OptimizerConfig& o = t.optimizer;
  o.learning_rate = 3e-3;  // large enough to matter within three steps
  // Above 1 / learning_rate a step would flip the sign of the weights and enlarge them, and with them every rounding difference between layouts.
  o.weight_decay = std::min(o.weight_decay, 0.5 / o.learning_rate);
  o.learning_rate_scaling = BatchScaling::kNone;
  o.reference_batch_size.reset();
  // The gradient of a key bias is zero except for rounding, which AdamW would normalise to a full-size update. A larger epsilon prevents that.
  o.epsilon = std::max(o.epsilon, 1e-6);
  t.schedule = {};
  t.schedule.name = LearningRateSchedule::kConstant;
}

/// Layers per stage: at least one each; the rest goes to the stage that has most in the configuration, else nearly but never exactly evenly. The first
/// and the last stage have none if they have none in the configuration, whose stages may be more: with two stages, only the first of them.
std::vector<int64_t> split_layers(int64_t layers, int64_t stages, std::vector<int64_t> user) {
  if (stages > 1 && !user.empty() && user.front() == 0) {
    std::vector<int64_t> split = split_layers(layers, stages - 1, {user.begin() + 1, user.end()});
    split.insert(split.begin(), 0);
    return split;
  }
  if (stages > 1 && !user.empty() && user.back() == 0) {
    user.pop_back();
    std::vector<int64_t> split = split_layers(layers, stages - 1, user);
    split.push_back(0);
    return split;
  }
  std::vector<int64_t> split(static_cast<size_t>(stages), layers / stages);
  for (int64_t s = stages - layers % stages; s < stages; ++s) ++split[static_cast<size_t>(s)];
  const bool even = layers % stages == 0 && stages > 1 && layers > stages;
  if (user.size() == split.size() && std::ranges::adjacent_find(user, std::ranges::not_equal_to()) != user.end() && layers > stages) {
    split.assign(static_cast<size_t>(stages), 1);
    split[static_cast<size_t>(std::ranges::max_element(user) - user.begin())] += layers - stages;
  } else if (even) {
    --split.front();
    ++split.back();
  }
  return split;
}

}  // namespace

Clone make_clone(const Config& config, const std::vector<Layout>& layouts, int64_t seed) {
  for (const Layout& layout : layouts) {
    refuse_many_ranks(layout);
    check_against(config, layout);
  }
  Clone clone;
  clone.config = config;
  if (config.parallel.layers_per_stage) clone.user_layers_per_stage = *config.parallel.layers_per_stage;
  Config& c = clone.config;
  reset(c, {Aspect::kLayout, Aspect::kOperation});
  const int64_t unit = least_common(layouts, [](const Layout& layout) { return layout.sequence_parallel ? layout.tensor : 1; });
  const int64_t sequence = (kLeastSequence + unit - 1) / unit * unit;
  const int64_t blocks = blocks_per_unit(config);
  shrink_model(c.model, config.training.sequence_length, sequence, layouts);
  c.model.adapter = adapter_like(config.model, c.model);
  c.model.frozen = frozen_like(config.model, c.model);
  shrink_training(c.training, sequence, layouts, config.resilience.rebalance == Rebalance::kMicroBatches);
  clone.even_batch = c.training.global_batch_size;
  // Data ranks of an elastic job need not divide the batch, so here they do not.
  if (is_elastic(config.resilience)) c.training.global_batch_size += least_common(layouts, [](const Layout& layout) { return layout.micro_batch; });
  c.run.seed = seed;
  c.run.device = DeviceType::kCpu;
  c.parallel.islands = 1;
  c.parallel.virtual_stages = 1;
  if (config.parallel.zero_stage == 0) c.parallel.prefetch = ParallelConfig{}.prefetch;
  c.parallel.bucket_size.reset();
  if (blocks > 1) {
    c.parallel.bucket_size = int64_t{1} << 40;
    c.parallel.bucket_size = blocks * (*c.parallel.bucket_size / blocks_per_unit(c));
  }
  c.data = {};
  c.data.tokenizer = "none";
  c.data.document_mask = config.data.document_mask;
  c.data.balance = config.data.balance;
  c.security = {};  // a robust rule depends on how samples are divided between data ranks
  return clone;
}

Config Clone::in(const Layout& layout) const {
  Config result = config;
  ParallelConfig& p = result.parallel;
  p = layout.parallel(config.parallel);
  p.virtual_stages = layout.stages() / layout.pipeline;
  p.layers_per_stage = split_layers(config.model.layers, layout.stages(), user_layers_per_stage);
  if (p.zero_stage == 0) p.prefetch = ParallelConfig{}.prefetch;
  result.training.micro_batch_size = layout.micro_batch;
  if (layout.recompute) set_recompute(result.training, *layout.recompute);
  return result;
}

int64_t unpadded_vocabulary(int64_t vocabulary, const std::vector<Layout>& layouts) {
  const auto padded = [&](int64_t ranks) { return vocabulary % ranks != 0 || stored_tokens(vocabulary / ranks) != vocabulary / ranks; };
  while (padded(1) || std::ranges::any_of(layouts, [&](const Layout& layout) { return padded(layout.tensor); })) ++vocabulary;
  return vocabulary;
}

}  // namespace trireme
