#include "parallel/pipeline/world.h"

#include "kernels/core/check.h"
#include "parallel/pipeline/rendezvous.h"
#include "parallel/pipeline/world_clocks.h"

namespace trireme {

const char* name_of(WaitCause cause) {
  constexpr const char* kNames[] = {"stage", "transfer", "tensor", "gather", "reduce", "last"};
  return kNames[static_cast<size_t>(cause)];
}

std::vector<const ActionList*> lists_of_ranks(const std::vector<ActionList>& lists, const MeshShape& mesh) {
  const bool shared = static_cast<int>(lists.size()) == mesh.pipeline;
  TRIREME_CHECK(shared || static_cast<int>(lists.size()) == mesh.world(), lists.size(), " lists for ", mesh.world(), " ranks");
  std::vector<const ActionList*> by_rank;
  for (int rank = 0; rank < mesh.world(); ++rank) by_rank.push_back(&lists[static_cast<size_t>(shared ? coordinate_of(mesh, rank).pipeline : rank)]);
  return by_rank;
}

std::vector<int> stage_ranks(const std::vector<const ActionList*>& lists, const MeshShape& mesh, size_t stages) {
  std::vector<int> stage_rank(stages, -1);
  for (size_t rank = 0; rank < lists.size(); ++rank) {
    if (rank > 0 && lists[rank] == lists[rank - 1]) continue;  // most ranks of a pipeline rank share a list, and are neighbours
    const int pipeline = coordinate_of(mesh, static_cast<int>(rank)).pipeline;
    for (const Action& action : *lists[rank])
      if (is_compute(action.type) && action.stage >= 0 && action.stage < static_cast<int>(stages) &&
          stage_rank[static_cast<size_t>(action.stage)] < 0)
        stage_rank[static_cast<size_t>(action.stage)] = pipeline;
  }
  return stage_rank;
}

WorldSimulation simulate_world(const std::vector<const ActionList*>& lists_by_world_rank, const MeshShape& mesh,
                               const std::vector<StageUnits>& stages, const WorldCosts& costs, const std::vector<int>& traced) {
  TRIREME_CHECK(static_cast<int>(lists_by_world_rank.size()) == mesh.world(), lists_by_world_rank.size(), " lists for ", mesh.world(), " ranks");
  const std::vector<int> stage_rank = stage_ranks(lists_by_world_rank, mesh, stages.size());
  WorldClocks clocks(lists_by_world_rank, mesh, stage_rank, stages, costs, traced);
  const std::vector<std::string> violations = run_rendezvous(lists_by_world_rank, mesh, stage_rank, &clocks);
  if (!violations.empty())
    throw InternalError(concat("the lists of ", mesh.world(), " ranks do not terminate: ", violations.front(),
                               violations.size() > 1 ? "; " + violations.back() : ""));
  return clocks.result();
}

}  // namespace trireme
