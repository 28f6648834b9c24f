#include "trainer/plan/reroute_cost.h"

#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
#include "trainer/layout/rerouting.h"
#include "trainer/plan/text.h"
#include "trainer/plan/world_costs.h"

namespace trireme {
namespace {

double simulated_seconds(const Config& config, const ClusterConfig& cluster) {
  return simulate_step(config, cluster, lowered_schedule(config)).step.step_seconds;
}

/// The same global batch, rounded up to whole micro-batches of each rank, on `ranks` data ranks.
Config on_data_ranks(Config config, int64_t ranks, int64_t microbatches) {
  ParallelConfig& p = config.parallel;
  if (ranks % p.replicate != 0) p.replicate = p.replicate == *p.data ? ranks : 1;
  p.data = ranks;
  if (p.secondary_shards > 0 && ranks / p.replicate % p.secondary_shards != 0) p.secondary_shards = 0;
  config.training.global_batch_size = config.training.micro_batch_size * ranks * microbatches;
  return config;
}

}  // namespace

std::optional<RerouteCost> reroute_cost(const Config& config, const ClusterConfig& cluster) {
  const int microbatches = microbatches_of(config);
  const std::optional<Rerouting> rerouting = rerouting_of(config, microbatches);
  if (!rerouting || cluster.cores_per_rank() < 1) return std::nullopt;
  const Config plain = without_reroute(config);
  RerouteCost cost{.undisturbed_seconds = simulated_seconds(plain, cluster), .rerouted_seconds = simulated_seconds(config, cluster)};
  for (const auto& pipeline : rerouting->added)
    for (const auto& added : pipeline) cost.added_microbatches = std::max<int64_t>(cost.added_microbatches, std::ssize(added));
  std::set<int> gone;
  for (const PipelinePlace& one : rerouting->relieved) gone.insert(one.data);
  cost.fewer_ranks = *config.parallel.data - std::ssize(gone);
  if (cost.fewer_ranks < 1 || config.parallel.schedule == "file") return cost;
  const int64_t all = microbatches * *config.parallel.data;
  cost.fewer_microbatches = (all + cost.fewer_ranks - 1) / cost.fewer_ranks;
  cost.fewer_seconds = simulated_seconds(on_data_ranks(plain, cost.fewer_ranks, cost.fewer_microbatches), cluster);
  return cost;
}

nlohmann::ordered_json reroute_cost_json(const RerouteCost& cost) {
  nlohmann::ordered_json fewer;
  if (cost.fewer_seconds) fewer = {{"data", cost.fewer_ranks}, {"micro_batches", cost.fewer_microbatches}, {"step_seconds", *cost.fewer_seconds}};
  return {{"undisturbed_step_seconds", cost.undisturbed_seconds},
          {"rerouted_step_seconds", cost.rerouted_seconds},
          {"added_micro_batches", cost.added_microbatches},
          {"fewer_replicas", fewer}};
}

std::string reroute_cost_text(const RerouteCost& cost) {
  const auto row = [&](const char* what, double seconds) {
    return print("  %-28s%11s  %.3g x", what, seconds_text(seconds).c_str(), seconds / cost.undisturbed_seconds);
  };
  std::string text = "resilience.reroute, simulated without norm and update; the step above is the undisturbed one:\n";
  text += concat(row("undisturbed", cost.undisturbed_seconds), "\n", row("rerouted", cost.rerouted_seconds), ", as a helper computes up to ",
                 counted(cost.added_microbatches, "micro-batch", "micro-batches"), " more\n");
  if (cost.fewer_seconds)
    text += concat(row("restart with fewer replicas", *cost.fewer_seconds), ", parallel.data ", cost.fewer_ranks, " with ",
                   counted(cost.fewer_microbatches, "micro-batch", "micro-batches"), " each\n");
  return text;
}

}  // namespace trireme
