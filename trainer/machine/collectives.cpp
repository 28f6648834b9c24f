#include "trainer/machine/collectives.h"

#include <algorithm>
#include <utility>

#include "trainer/config/write.h"
#include "trainer/layout/message_costs.h"
#include "trainer/machine/collectively.h"
#include "trainer/machine/environment.h"

namespace trireme {
namespace {

/// The figures of plan.cluster, as a cluster file.
std::string figures_of(const std::string& named) {
  if (named != "none") return to_yaml(resolve_cluster(load_cluster(named)));
  ClusterConfig cluster;
  cluster.device.type = "cpu";
  return to_yaml(resolve_cluster(cluster));
}

}  // namespace

StepwiseOptions stepwise_options(Collectives collectives, const ClusterConfig& cluster) {
  return {.algorithm = algorithm_of(collectives),
          .within = message_costs(cluster.node_link, cluster),
          .between = message_costs(cluster.network, cluster)};
}

StepwiseOptions agreed_stepwise_options(Communicator& world, const Config& config) {
  // All ranks must choose alike, so rank 0's figures count, even if files differ between hosts.
  std::string figures;
  collectively(world, [&] {
    if (world.rank() == 0) figures = figures_of(config.plan.cluster);
  });
  figures = all_gather_strings(world, figures).front();
  StepwiseOptions options = stepwise_options(config.parallel.collectives.value(), parse_cluster(figures, "plan.cluster of rank 0"));
  std::vector<std::string> seen;
  for (const std::string& host : all_gather_strings(world, host_name())) {
    const auto known = std::ranges::find(seen, host);
    options.hosts.push_back(static_cast<int>(known - seen.begin()));
    if (known == seen.end()) seen.push_back(host);
  }
  return options;
}

std::unique_ptr<Communicator> with_collectives(std::unique_ptr<Communicator> world, const Config& config) {
  if (config.parallel.collectives == Collectives::kLibrary || world->size() == 1) return world;
  const StepwiseOptions options = agreed_stepwise_options(*world, config);
  return stepwise(std::move(world), options);
}

}  // namespace trireme
