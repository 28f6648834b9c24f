#include "trainer/plan/search.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <tuple>

#include "kernels/core/check.h"
#include "trainer/config/check.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/layout/resolve.h"
#include "trainer/loop/memory.h"
#include "trainer/machine/environment.h"
#include "trainer/plan/in_parallel.h"
#include "trainer/plan/layout_costs.h"
#include "trainer/plan/proposal.h"

namespace trireme {
namespace {

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr size_t kTooLarge = 20;

/// A layout without its sharding, with lower bounds for all shardings.
struct Node {
  Layout layout;
  size_t group = 0;        ///< index of its tensor x pipeline group
  double bound = 0;        ///< seconds of a step
  double least_bytes = 0;  ///< of the memory; 0 if none is known
  bool evaluated = false;
};

Layout sharded(Layout layout, const LayoutSpace::Sharding& sharding) {
  layout.zero = sharding.zero;
  layout.replicate = sharding.replicate;
  return layout;
}

struct Group {
  LayoutSpace::Degrees degrees;
  double best = kNever;  ///< ranking_seconds of the first layout that fits
  /// Peak bytes of the smallest layout that does not fit, and its Found::order: of equal ones the first counts, in whatever order they are evaluated.
  std::pair<double, size_t> nearest = {kNever, 0};
  double allowance = 0;  ///< least runtime allowance of any rank and sharding, bytes
  std::vector<LayoutSpace::Sharding> shardings;
};

/// Whether layouts differ only in virtual stages, replicas and sequence parallelism. The best layout represents its family.
bool same_family(const Layout& a, const Layout& b) {
  const auto key = [](const Layout& l) { return std::tuple(l.tensor, l.pipeline, l.zero, l.micro_batch, l.schedule, l.recompute); };
  return key(a) == key(b);
}

struct Found {
  Layout layout;
  std::vector<int64_t> split;
  size_t group = 0;
  size_t order = 0;  ///< index of its node
  Forecast forecast;
};

bool before(const Found& a, const Found& b) {
  const auto key = [](const Found& f) { return std::tuple(ranking_seconds(f.forecast), largest_peak(f.forecast.memory), name_of(f.layout)); };
  if (ranking_seconds(a.forecast) != ranking_seconds(b.forecast)) return ranking_seconds(a.forecast) < ranking_seconds(b.forecast);
  return key(a) < key(b);
}

/// The forecasts of a node's shardings.
struct Evaluation {
  struct Sharding {
    Layout layout;
    double bound;        ///< lower bound of the step time
    double least_bytes;  ///< lower bound of the memory
    Forecast forecast;
  };
  std::vector<int64_t> split;
  std::vector<Sharding> shardings;
};

class Search {
 public:
  Search(const Config& config, const ClusterConfig& cluster, const SearchOptions& options)
      : given_(config),
        cluster_(cluster),
        options_(options),
        space_(config, cluster),
        limit_(cluster.device.memory.value()),
        bounds_memory_(options.prune && stack_of(cluster.software.stack).own) {
    const size_t threads = options.threads > 0 ? options.threads : static_cast<size_t>(usable_cores());
    for (size_t i = 0; i < threads; ++i) workers_.emplace_back(space_, cluster_);
  }

  SearchResult run(const std::function<void(double)>& progress);

 private:
  void list_nodes();
  void list_nodes(size_t group, int64_t micro_batch, bool sequence_parallel, RecomputeMode recompute,
                  const std::vector<LayoutSpace::Pipelining>& pipelinings);
  double least_bytes(const Layout& layout, size_t group, const std::vector<LeastMemory::Rank>& ranks, LayoutCosts& costs) const;
  void set_bounds(Node& node, LayoutCosts& costs) const;
  double least_allowance(const Group& group) const;
  bool worth(const Layout& layout, size_t group, double bound) const;
  const Found* best_of_family(const Layout& layout) const;
  bool too_large(size_t group, double least_bytes) const;
  Evaluation evaluate(const Node& node, LayoutCosts& costs) const;
  void add(size_t at, Evaluation evaluation);
  void evaluate(const std::vector<size_t>& nodes);
  std::vector<size_t> smallest_nodes() const;
  void keep(Found found);
  RankedLayout ranked(const Found& found) const;
  void finish(SearchResult& result);

  const Config& given_;
  const ClusterConfig& cluster_;
  const SearchOptions& options_;
  LayoutSpace space_;
  double limit_;
  bool bounds_memory_;               ///< only Trireme's own memory has a lower bound
  std::deque<LayoutCosts> workers_;  ///< one a thread
  std::vector<Group> groups_;
  std::vector<Node> nodes_;
  std::vector<Found> best_;  ///< sorted; at most options.keep families
  std::map<size_t, Found> best_of_group_;
  std::map<size_t, Found> nearest_of_group_;
  int64_t legal_ = 0, tried_ = 0;
};

/// Lower bound of a layout's memory. `ranks`: LeastMemory::ranks() of its node.
double Search::least_bytes(const Layout& layout, size_t group, const std::vector<LeastMemory::Rank>& ranks, LayoutCosts& costs) const {
  return (costs.least_memory(layout).peak(layout, ranks) + groups_[group].allowance) * LayoutCosts::kRounding;
}

void Search::set_bounds(Node& node, LayoutCosts& costs) const {
  const std::vector<int64_t> layers = costs.split(node.layout);
  node.bound = costs.bound_before_sharding(node.layout, layers);
  if (!bounds_memory_) return;
  const std::vector<LeastMemory::Rank> ranks = costs.least_memory(node.layout).ranks(node.layout, layers);
  node.least_bytes = kNever;
  for (const LayoutSpace::Sharding& sharding : groups_[node.group].shardings)
    node.least_bytes = std::min(node.least_bytes, least_bytes(sharded(node.layout, sharding), node.group, ranks, costs));
}

void Search::list_nodes(size_t group, int64_t micro_batch, bool sequence_parallel, RecomputeMode recompute,
                        const std::vector<LayoutSpace::Pipelining>& pipelinings) {
  const LayoutSpace::Degrees& d = groups_[group].degrees;
  for (const auto& [schedule, stages] : pipelinings) {
    if (!fits_action_limit(d.pipeline * stages, space_.base().training.global_batch_size / micro_batch / d.data)) continue;
    Node node{{.tensor = d.tensor,
               .pipeline = d.pipeline,
               .data = d.data,
               .micro_batch = micro_batch,
               .sequence_parallel = sequence_parallel,
               .schedule = schedule,
               .virtual_stages = stages,
               .recompute = recompute},
              group,
              0};
    nodes_.push_back(node);
    legal_ += static_cast<int64_t>(groups_[group].shardings.size());
  }
}

/// The least runtime allowance of any rank and sharding, bytes.
double Search::least_allowance(const Group& group) const {
  if (cluster_.device.cores) return 0;
  double least = kNever;
  for (const LayoutSpace::Sharding& sharding : group.shardings) {
    const auto [tensor, pipeline, data] = group.degrees;
    const Config config = space_.config(sharded({.tensor = tensor, .pipeline = pipeline, .data = data}, sharding), {});
    const MeshShape shape = mesh_shape(config.parallel);
    for (int r = 0; r < shape.pipeline; ++r)
      least = std::min(least, static_cast<double>(runtime_bytes(config, rank_of(shape, {.pipeline = r})).total()));
  }
  return least;
}

void Search::list_nodes() {
  std::map<int64_t, std::vector<LayoutSpace::Pipelining>> pipelinings;
  std::map<int64_t, std::vector<LayoutSpace::Sharding>> shardings;
  std::map<int64_t, std::vector<int64_t>> micro_batches;
  for (const LayoutSpace::Degrees& d : space_.degrees()) {
    if (!pipelinings.contains(d.pipeline)) pipelinings[d.pipeline] = space_.pipelinings(d.pipeline);
    if (!shardings.contains(d.data)) shardings[d.data] = space_.shardings(d.data);
    if (!micro_batches.contains(d.data)) micro_batches[d.data] = space_.micro_batches(d.data);
    groups_.push_back({.degrees = d, .shardings = shardings[d.data]});
    if (bounds_memory_) groups_.back().allowance = least_allowance(groups_.back());
    for (const int64_t micro_batch : micro_batches[d.data])
      for (const bool sequence_parallel : space_.sequence_parallel(d.tensor, micro_batch))
        for (const RecomputeMode recompute : kRecomputes)
          list_nodes(groups_.size() - 1, micro_batch, sequence_parallel, recompute, pipelinings[d.pipeline]);
  }
  in_parallel(nodes_.size(), workers_, [&](size_t i, LayoutCosts& costs) { set_bounds(nodes_[i], costs); });
  std::stable_sort(nodes_.begin(), nodes_.end(), [](const Node& a, const Node& b) { return a.bound < b.bound; });
}

const Found* Search::best_of_family(const Layout& layout) const {
  const auto at = std::find_if(best_.begin(), best_.end(), [&](const Found& f) { return same_family(f.layout, layout); });
  return at == best_.end() ? nullptr : &*at;
}

/// Whether a layout with step time >= `bound` can still enter the result, as the best of its family or as the best of its group.
bool Search::worth(const Layout& layout, size_t group, double bound) const {
  if (!options_.prune || bound <= groups_[group].best) return true;
  if (const Found* family = best_of_family(layout)) return bound <= ranking_seconds(family->forecast);
  return best_.size() < options_.keep || bound <= ranking_seconds(best_.back().forecast);
}

void Search::keep(Found found) {
  Group& group = groups_[found.group];
  if (!found.forecast.fits) {
    const double peak = largest_peak(found.forecast.memory);
    const std::pair nearest{peak, found.order};
    if (nearest < group.nearest) nearest_of_group_[found.group] = found;
    group.nearest = std::min(group.nearest, nearest);
    return;
  }
  const auto of_group = best_of_group_.find(found.group);
  if (of_group == best_of_group_.end() || before(found, of_group->second)) best_of_group_[found.group] = found;
  group.best = std::min(group.best, ranking_seconds(found.forecast));
  if (const Found* family = best_of_family(found.layout)) {
    if (!before(found, *family)) return;
    best_.erase(best_.begin() + (family - best_.data()));
  }
  best_.insert(std::upper_bound(best_.begin(), best_.end(), found, before), std::move(found));
  if (best_.size() > options_.keep) best_.pop_back();
}

/// Whether a layout neither fits nor can be the closest to fitting of its group.
bool Search::too_large(size_t group, double least_bytes) const {
  return least_bytes > limit_ && (groups_[group].best < kNever || least_bytes >= groups_[group].nearest.first);
}

/// Forecasts the shardings of a node that can still enter the result.
Evaluation Search::evaluate(const Node& node, LayoutCosts& costs) const {
  Evaluation result;
  if (too_large(node.group, node.least_bytes)) return result;
  std::optional<StepSchedule> schedule;  // the same for all shardings
  std::vector<LeastMemory::Rank> ranks;
  const std::vector<int> rank_of = stage_ranks_of(node.layout);
  for (const LayoutSpace::Sharding& sharding : groups_[node.group].shardings) {
    const Layout layout = sharded(node.layout, sharding);
    if (!worth(layout, node.group, node.bound)) continue;
    if (result.split.empty()) result.split = costs.split(node.layout);
    if (bounds_memory_ && ranks.empty()) ranks = costs.least_memory(layout).ranks(layout, result.split);
    const double bytes = bounds_memory_ ? least_bytes(layout, node.group, ranks, costs) : 0;
    if (too_large(node.group, bytes)) continue;
    const Config config = space_.config(layout, result.split);
    const StepCosts step = step_costs(config, cluster_, costs.model_of(layout), rank_of);
    double after = kNever;
    for (size_t r = 0; r < step.reduce.size(); ++r) after = std::min(after, step.reduce[r] + step.optimizer[r]);
    const double least = costs.bound(layout, step.stages, step.transfers) + LayoutCosts::kRounding * (after + step.host);
    if (!worth(layout, node.group, least)) continue;
    if (!schedule) schedule = step_schedule(config);
    Forecast forecast;
    set_memory(forecast, formula_memory(config, cluster_, costs.profiles(), *schedule), limit_, given_.plan.memory_margin);
    if (forecast.fits) forecast.step_seconds = step_seconds(config, cluster_, step, *schedule);
    result.shardings.push_back({layout, least, bytes, std::move(forecast)});
  }
  return result;
}

/// Keeps what is worth it now: other nodes may have been added since the evaluation began. The result is that of a search on one thread.
void Search::add(size_t at, Evaluation evaluation) {
  Node& node = nodes_[at];
  node.evaluated = true;
  for (auto& [layout, least, least_bytes, forecast] : evaluation.shardings) {
    if (!worth(layout, node.group, node.bound) || too_large(node.group, least_bytes) || !worth(layout, node.group, least)) continue;
    ++tried_;
    keep({layout, evaluation.split, node.group, at, std::move(forecast)});
  }
}

/// Evaluates nodes at the same time, and adds them in their order.
void Search::evaluate(const std::vector<size_t>& nodes) {
  std::vector<Evaluation> evaluations(nodes.size());
  in_parallel(nodes.size(), workers_, [&](size_t i, LayoutCosts& costs) { evaluations[i] = evaluate(nodes_[nodes[i]], costs); });
  for (size_t i = 0; i < nodes.size(); ++i) add(nodes[i], std::move(evaluations[i]));
}

/// The node of each group with the lowest bound of its memory. Their forecasts tell which other layouts of the group are too large.
std::vector<size_t> Search::smallest_nodes() const {
  std::vector<size_t> smallest(groups_.size(), nodes_.size());
  for (size_t i = 0; i < nodes_.size(); ++i) {
    size_t& node = smallest[nodes_[i].group];
    if (node == nodes_.size() || nodes_[i].least_bytes < nodes_[node].least_bytes) node = i;
  }
  std::erase(smallest, nodes_.size());
  return smallest;
}

RankedLayout Search::ranked(const Found& found) const {
  const Config config = resolve(space_.config(found.layout, found.split), cluster_.devices());
  Forecast forecast = forecast_time(config, cluster_);
  set_memory(forecast, found.forecast.memory, limit_, given_.plan.memory_margin);
  return {config, with_layout_of(given_, config), name_of(found.layout), forecast, ""};
}

/// Counts the memory of the best layout, for which devices will be rented. A layout that then does not fit is skipped. One that then is tight goes
/// behind the roomy ones that are nearly as fast, of which the first is counted in turn.
void Search::finish(SearchResult& result) {
  std::vector<Found> list = best_;
  for (const auto& [group, found] : best_of_group_)
    if (std::none_of(best_.begin(), best_.end(), [&, g = group](const Found& f) { return f.group == g; })) list.push_back(found);
  std::sort(list.begin(), list.end(), before);
  for (const Found& found : list) result.layouts.push_back(ranked(found));
  std::set<std::string> counted;
  while (!result.layouts.empty() && !counted.contains(result.layouts.front().layout)) {
    RankedLayout layout = std::move(result.layouts.front());
    result.layouts.erase(result.layouts.begin());
    set_memory(layout.forecast, memory_of(layout.config, cluster_), limit_, given_.plan.memory_margin);
    counted.insert(layout.layout);
    if (!layout.forecast.fits) {
      result.too_large.push_back(std::move(layout));
      continue;
    }
    const auto slower = [&](const RankedLayout& other) { return ranking_seconds(other.forecast) >= ranking_seconds(layout.forecast); };
    result.layouts.insert(std::ranges::find_if(result.layouts, slower), std::move(layout));
  }
  for (const auto& [group, found] : nearest_of_group_)
    if (!best_of_group_.contains(group)) result.too_large.push_back(ranked(found));
  std::stable_sort(result.too_large.begin(), result.too_large.end(),
                   [](const RankedLayout& a, const RankedLayout& b) { return largest_peak(a.forecast.memory) < largest_peak(b.forecast.memory); });
  if (result.too_large.size() > kTooLarge) result.too_large.resize(kTooLarge);
}

SearchResult Search::run(const std::function<void(double)>& progress) {
  SearchResult result;
  list_nodes();
  if (bounds_memory_) evaluate(smallest_nodes());
  // Nodes are evaluated some at a time, and added in their order.
  const size_t together = workers_.size() == 1 ? 1 : 8 * workers_.size();
  std::vector<size_t> some;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!nodes_[i].evaluated) some.push_back(i);
    if (some.size() < together && i + 1 < nodes_.size()) continue;
    evaluate(some);
    some.clear();
    if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(nodes_.size()));
  }
  finish(result);
  result.legal = legal_;
  result.tried = tried_;
  if (progress) progress(1);
  return result;
}

}  // namespace

SearchResult search_layouts(const Config& config, const ClusterConfig& cluster, const std::function<void(double)>& progress,
                            const SearchOptions& options) {
  SearchResult result = Search(config, cluster, options).run(progress);
  for (size_t i = 1; i < result.layouts.size(); ++i) result.layouts[i].reason = slowdown_reason(result.layouts[i], result.layouts[0]);
  for (RankedLayout& layout : result.too_large) layout.reason = memory_reason(layout.forecast);
  result.why = winning_reason(result);
  if (!options.advise) return result;
  if (result.legal == 0) result.batches = better_batches(config, cluster, 0);
  if (!result.layouts.empty()) {
    result.batches = batches_without_idle_ranks(config, cluster, result.layouts.front().forecast);
    return result;
  }
  result.remedies = find_remedies(config, cluster);
  for (const BetterBatch& better : result.batches) {
    result.remedies.push_back({concat("with training.global_batch_size ", better.batch), config, cluster});
    result.remedies.back().config.training.global_batch_size = better.batch;
  }
  result.advice = advice(result, config, cluster);
  return result;
}

}  // namespace trireme
