#include "trainer/layout/rerouting.h"

#include <algorithm>
#include <set>

#include "kernels/core/check.h"
#include "trainer/config/check_reroute.h"
#include "trainer/layout/lowered_schedule.h"

namespace trireme {

std::optional<Rerouting> rerouting_of(const Config& config, int microbatches) {
  if (config.resilience.reroute.empty()) return std::nullopt;
  std::vector<PipelinePlace> relieved;
  for (const std::string& text : config.resilience.reroute) {
    const std::optional<RelievedRank> rank = parse_relieved_rank(text);
    TRIREME_CHECK(rank, "invalid relieved rank ", text);
    relieved.push_back({static_cast<int>(rank->data), static_cast<int>(rank->pipeline)});
  }
  return make_rerouting(static_cast<int>(config.parallel.data.value()), static_cast<int>(config.parallel.pipeline), microbatches,
                        static_cast<int>(config.resilience.reroute_from), relieved);
}

Config without_reroute(Config config) {
  config.resilience.reroute.clear();
  config.resilience.reroute_from = 0;
  return config;
}

/// Helpers differ by one micro-batch at most, and the first ones have the most. Neighbours of relieved ranks send to several ranks.
std::vector<int> ranks_to_forecast(const Config& config, int pipeline) {
  const MeshShape mesh = mesh_shape(config.parallel);
  std::set<int> data{0};
  if (const std::optional<Rerouting> rerouting = rerouting_of(config, microbatches_of(config))) {
    for (const PipelinePlace& one : rerouting->relieved) data.insert(one.data);
    const auto first = [&](const auto& wanted) {
      for (int d = 0; d < mesh.data(); ++d)
        if (wanted(d)) return static_cast<void>(data.insert(d));
    };
    first([&](int d) { return !rerouting->relieves(d, pipeline); });
    first([&](int d) { return !data.contains(d); });
  }
  std::vector<int> ranks;
  for (const int d : data) ranks.push_back(rank_of(mesh, {.pipeline = pipeline, .replicate = d / mesh.shard, .shard = d % mesh.shard}));
  return ranks;
}

}  // namespace trireme
