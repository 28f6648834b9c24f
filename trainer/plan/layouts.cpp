#include "trainer/plan/layouts.h"

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <queue>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/config/check.h"
#include "trainer/layout/resolve.h"

namespace trireme {
namespace {

std::vector<int64_t> divisors(int64_t n) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d * d <= n; ++d)
    if (n % d == 0) out.push_back(d);
  for (size_t i = out.size(); i-- > 0;)
    if (out[i] * out[i] != n) out.push_back(n / out[i]);
  return out;
}

/// The user's configuration on one rank. Keys that are not part of a layout are kept if they are legal in every layout.
Config on_one_rank(const Config& config) {
  Config one = config;
  one.parallel = {};
  one.parallel.bucket_size = config.parallel.bucket_size;
  one.parallel.overlap = config.parallel.overlap;
  one.training.micro_batch_size = 1;
  one.training.recompute = RecomputeMode::kNone;
  one.training.recompute_every = 1;
  one.training.recompute_budget.reset();
  one.training.compression.parameters = CompressionConfig{}.parameters;
  one = resolve(one);
  one.parallel.prefetch = config.parallel.prefetch;
  one.training.compression.parameters = config.training.compression.parameters;
  return one;
}

}  // namespace

LayoutSpace::LayoutSpace(const Config& config, const ClusterConfig& cluster) : base_(on_one_rank(config)), cluster_(cluster) {}

bool LayoutSpace::legal(const Layout& layout) const {
  Config candidate = config(layout, {});
  candidate.parallel.layers_per_stage.reset();
  Violations violations;
  check(candidate, {}, violations);
  return violations.empty();
}

std::vector<LayoutSpace::Degrees> LayoutSpace::degrees() const {
  const int64_t world = cluster_.devices();
  std::vector<Degrees> out;
  for (const int64_t tensor : divisors(cluster_.devices_per_node)) {
    if (!legal({.tensor = tensor})) continue;
    for (const int64_t pipeline : divisors(world / tensor))
      if (world / tensor / pipeline % cluster_.software.context == 0 &&
          legal({.tensor = tensor, .pipeline = pipeline, .data = world / tensor / pipeline}))
        out.push_back({tensor, pipeline, world / tensor / pipeline});
  }
  return out;
}

std::vector<int64_t> LayoutSpace::micro_batches(int64_t data) const {
  std::vector<int64_t> out;
  for (const int64_t size : divisors(base_.training.global_batch_size / data))
    if (legal({.data = data, .micro_batch = size})) out.push_back(size);
  return out;
}

std::vector<bool> LayoutSpace::sequence_parallel(int64_t tensor, int64_t micro_batch) const {
  std::vector<bool> out{false};
  if (tensor > 1 && legal({.tensor = tensor, .micro_batch = micro_batch, .sequence_parallel = true})) out.push_back(true);
  return out;
}

std::vector<LayoutSpace::Pipelining> LayoutSpace::pipelinings(int64_t pipeline) const {
  if (pipeline == 1) return {{ScheduleKind::k1F1B, 1}};
  std::vector<Pipelining> out;
  for (const ScheduleKind kind : kScheduleKinds) {
    const int64_t first = default_virtual_stages(kind), last = allows_virtual_stages(kind, 3) ? base_.model.layers / pipeline : first;
    // The rules limit the number of stages from above only: the first illegal one is looked for in halves.
    int64_t illegal = first, beyond = std::max(first, last + 1);
    while (illegal < beyond) {
      const int64_t middle = illegal + (beyond - illegal) / 2;
      if (legal({.pipeline = pipeline, .schedule = kind, .virtual_stages = middle}))
        illegal = middle + 1;
      else
        beyond = middle;
    }
    for (int64_t stages = first; stages < illegal; ++stages) out.push_back({kind, stages});
  }
  return out;
}

std::vector<LayoutSpace::Sharding> LayoutSpace::shardings(int64_t data) const {
  std::vector<Sharding> out{{0, 1}};
  for (int64_t zero = 1; zero <= 3; ++zero)
    for (const int64_t replicate : divisors(data))
      if (replicate < data && legal({.data = data, .zero = zero, .replicate = replicate})) out.push_back({zero, replicate});
  return out;
}

Config LayoutSpace::config(const Layout& layout, std::vector<int64_t> layers_per_stage) const {
  Config out = base_;
  ParallelConfig& p = out.parallel;
  p = layout.parallel(base_.parallel);
  p.virtual_stages = layout.stages_per_rank();
  p.layers_per_stage = std::move(layers_per_stage);
  p.gradient_accumulation = layout.zero >= 2 ? GradientAccumulation::kSharded : GradientAccumulation::kFull;
  if (layout.zero == 0) {  // which gathers nothing, so that these keys have no effect and would be rejected
    p.prefetch = ParallelConfig{}.prefetch;
    out.training.compression.parameters = CompressionConfig{}.parameters;
  }
  out.training.micro_batch_size = layout.micro_batch;
  if (layout.recompute) out.training.recompute = *layout.recompute;
  return out;
}

std::string name_of(const Layout& layout) {
  Layout named = layout;
  if (layout.schedule != ScheduleKind::kInterleaved1F1B) named.virtual_stages.reset();
  named.gradient_accumulation = Layout{}.gradient_accumulation;
  named.reshard = Layout{}.reshard;
  return named.str();
}

namespace {

/// The first stage, the stages between, and the last one. Those between have the same cost until not all of them get another layer.
enum StagePlace { kFirst, kInner, kLast, kPlaces };
StagePlace place_of(size_t stage, size_t stages) { return stage == 0 ? kFirst : stage + 1 == stages ? kLast : kInner; }

/// Layers that are given out in rounds: all stages with the smallest cost get one before any of them gets another one.
struct EqualRounds {
  EqualRounds(int64_t layers, double layer, double first_extra, double last_extra, size_t stages, bool empty_ends);
  double layer_cost;
  std::array<double, kPlaces> start;  ///< cost before the rounds
  std::array<int64_t, kPlaces> split;
  std::vector<std::array<bool, kPlaces>> rounds;  ///< whose stages got a layer
  std::array<bool, kPlaces> next;                 ///< who would get one in the next round
  int64_t left;                                   ///< layers, fewer than the stages of `next`
};

EqualRounds::EqualRounds(int64_t layers, double layer, double first_extra, double last_extra, size_t stages, bool empty_ends) : layer_cost(layer) {
  const int64_t at_ends = empty_ends ? 0 : 1;
  const std::array<int64_t, kPlaces> count = {1, static_cast<int64_t>(stages) - 2, 1};
  split = {at_ends, 1, at_ends};
  start = {static_cast<double>(at_ends) * layer + first_extra, layer, static_cast<double>(at_ends) * layer + last_extra};
  std::array<double, kPlaces> cost = start;
  if (count[kInner] == 0) cost[kInner] = std::numeric_limits<double>::infinity();
  left = layers - 2 * at_ends - count[kInner];
  for (;;) {
    const double smallest = std::ranges::min(cost);
    int64_t here = 0;
    for (size_t place = 0; place < kPlaces; ++place) {
      next[place] = cost[place] == smallest;
      here += next[place] ? count[place] : 0;
    }
    if (here > left) return;
    left -= here;
    rounds.push_back(next);
    for (size_t place = 0; place < kPlaces; ++place) {
      if (!next[place]) continue;
      ++split[place];
      cost[place] += layer;
    }
  }
}

/// The cost of a rank with these numbers of stages. The sum has the order of the rounds, so that ranks with equal numbers have equal loads.
double load_of(const std::array<int64_t, kPlaces>& stages, const EqualRounds& equal) {
  double load = 0;
  for (size_t place = 0; place < kPlaces; ++place)
    for (int64_t i = 0; i < stages[place]; ++i) load += equal.start[place];
  for (const std::array<bool, kPlaces>& round : equal.rounds)
    for (size_t place = 0; place < kPlaces; ++place)
      for (int64_t i = 0; round[place] && i < stages[place]; ++i) load += equal.layer_cost;
  return load;
}

/// Gives out the layers that are left: the next stage of each rank, its last one, by the load of the rank.
void add_rest(const EqualRounds& equal, const std::vector<int>& stage_rank, std::vector<int64_t>& split) {
  constexpr size_t kNone = std::numeric_limits<size_t>::max();
  struct Rank {
    std::array<int64_t, kPlaces> stages = {};
    double load = 0;
    size_t next = kNone;
  };
  const size_t stages = stage_rank.size();
  std::vector<Rank> ranks(static_cast<size_t>(std::ranges::max(stage_rank)) + 1);
  std::vector<size_t> before(stages);  // the previous stage of the rank that may get a layer
  for (size_t s = 0; s < stages; ++s) {
    Rank& rank = ranks[static_cast<size_t>(stage_rank[s])];
    const StagePlace place = place_of(s, stages);
    ++rank.stages[place];
    if (equal.next[place]) before[s] = std::exchange(rank.next, s);
  }
  using Next = std::pair<double, int64_t>;
  std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
  const auto offer = [&](const Rank& rank) {
    if (rank.next != kNone) next.emplace(rank.load, -static_cast<int64_t>(rank.next));
  };
  for (size_t r = 0; r < ranks.size(); ++r) {
    ranks[r].load = r > 0 && ranks[r].stages == ranks[r - 1].stages ? ranks[r - 1].load : load_of(ranks[r].stages, equal);
    offer(ranks[r]);
  }
  for (int64_t left = equal.left; left > 0; --left) {
    const auto s = static_cast<size_t>(-next.top().second);
    next.pop();
    ++split[s];
    Rank& rank = ranks[static_cast<size_t>(stage_rank[s])];
    rank.load += equal.layer_cost;
    rank.next = before[s];
    offer(rank);
  }
}

}  // namespace

std::vector<int64_t> balance_equal_layers(int64_t layers, double layer, double first_extra, double last_extra, const std::vector<int>& stage_rank,
                                          bool empty_ends) {
  const size_t stages = stage_rank.size();
  TRIREME_CHECK(stages >= 1 && static_cast<int64_t>(stages) <= layers, stages, " stages, ", layers, " layers");
  if (stages == 1) return {layers};
  const EqualRounds equal(layers, layer, first_extra, last_extra, stages, empty_ends);
  std::vector<int64_t> split(stages);
  for (size_t s = 0; s < stages; ++s) split[s] = equal.split[place_of(s, stages)];
  if (equal.left > 0) add_rest(equal, stage_rank, split);
  return split;
}

bool empty_ends(const LayoutSpace& space, const Layout& layout) {
  return space.base().training.global_batch_size / layout.micro_batch / layout.data > 1;
}

std::vector<int64_t> split_by_time(const LayoutSpace& space, const Layout& layout, const ModelSeconds& model) {
  const std::vector<int> stage_rank = stage_ranks_of(layout);
  const int64_t layers = space.base().model.layers;
  const double first = model.embedding().seconds.front().total(), last = model.head().seconds.front().total();
  const auto how = static_cast<Recompute>(layout.recompute.value());
  if (model.blocks_alike()) {
    const double block = model.mean_block.at(static_cast<size_t>(how)).total();
    return balance_equal_layers(layers, block, first, last, stage_rank, empty_ends(space, layout));
  }
  std::vector<double> blocks;
  for (int64_t b = 0; b < layers; ++b) blocks.push_back(model.seconds_of(model.parts[static_cast<size_t>(b) + 1], how).total());
  return balance_layers(blocks, first, last, static_cast<int64_t>(stage_rank.size()), empty_ends(space, layout));
}

std::vector<int> stage_ranks_of(ScheduleKind schedule, int64_t pipeline, int64_t virtual_stages) {
  std::vector<int> ranks(static_cast<size_t>(pipeline * virtual_stages));
  for (size_t s = 0, r = 0; s < ranks.size(); ++s) {
    ranks[s] = static_cast<int>(r);
    if (++r == static_cast<size_t>(pipeline)) r = 0;
  }
  if (schedule == ScheduleKind::kZbV) std::reverse(ranks.begin() + pipeline, ranks.end());
  return ranks;
}

}  // namespace trireme
