#include "trainer/plan/layouts.h"

#include <algorithm>
#include <functional>
#include <numeric>
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
    for (int64_t stages = first; stages <= last; ++stages)
      if (legal({.pipeline = pipeline, .schedule = kind, .virtual_stages = stages})) out.push_back({kind, stages});
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

std::vector<int64_t> balance_equal_layers(int64_t layers, double layer, double first_extra, double last_extra, const std::vector<int>& stage_rank,
                                          bool empty_ends) {
  const size_t stages = stage_rank.size();
  TRIREME_CHECK(stages >= 1 && static_cast<int64_t>(stages) <= layers, stages, " stages, ", layers, " layers");
  std::vector<int64_t> split(stages, 1);
  if (empty_ends && stages > 1) split.front() = split.back() = 0;
  std::vector<double> cost(stages);
  for (size_t s = 0; s < stages; ++s) cost[s] = static_cast<double>(split[s]) * layer;
  cost.front() += first_extra;
  cost.back() += last_extra;
  std::vector<double> load(static_cast<size_t>(*std::max_element(stage_rank.begin(), stage_rank.end())) + 1, 0);
  const auto load_of = [&](size_t s) -> double& { return load[static_cast<size_t>(stage_rank[s])]; };
  for (size_t s = 0; s < stages; ++s) load_of(s) += cost[s];
  const auto add = [&](size_t s) {
    ++split[s];
    cost[s] += layer;
    load_of(s) += layer;
  };
  // All stages with the smallest cost get their layer before any of them gets another one.
  std::vector<size_t> least;
  for (auto left = static_cast<size_t>(layers - std::accumulate(split.begin(), split.end(), int64_t{0})); left > 0;
       left -= std::min(left, least.size())) {
    const double smallest = *std::min_element(cost.begin(), cost.end());
    least.clear();
    for (size_t s = 0; s < stages; ++s)
      if (cost[s] == smallest) least.push_back(s);
    if (least.size() <= left) {
      for (const size_t s : least) add(s);
      continue;
    }
    // There is not one for each of them: the next stage of each rank, its last one, by the load of the rank.
    std::vector<std::vector<size_t>> of_rank(load.size());
    for (const size_t s : least) of_rank[static_cast<size_t>(stage_rank[s])].push_back(s);
    using Next = std::pair<double, int64_t>;
    std::priority_queue<Next, std::vector<Next>, std::greater<>> next;
    const auto offer = [&](std::vector<size_t>& rest) {
      if (!rest.empty()) next.emplace(load_of(rest.back()), -static_cast<int64_t>(rest.back()));
    };
    std::ranges::for_each(of_rank, offer);
    for (size_t i = 0; i < left; ++i) {
      const auto s = static_cast<size_t>(-next.top().second);
      next.pop();
      add(s);
      std::vector<size_t>& rest = of_rank[static_cast<size_t>(stage_rank[s])];
      rest.pop_back();
      offer(rest);
    }
  }
  return split;
}

std::vector<int> stage_ranks_of(ScheduleKind schedule, int64_t pipeline, int64_t virtual_stages) {
  std::vector<int> ranks;
  for (int64_t s = 0; s < pipeline * virtual_stages; ++s)
    ranks.push_back(static_cast<int>(schedule == ScheduleKind::kZbV && s >= pipeline ? 2 * pipeline - 1 - s : s % pipeline));
  return ranks;
}

}  // namespace trireme
