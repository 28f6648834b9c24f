#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/reroute.h"

namespace trireme {

/// Checks of rerouted lists that no single list shows: every part of every micro-batch of every pipeline is computed once in the world, and both ends of
/// a transfer mean the same micro-batch. `lists`: of each world rank. Returns descriptions of the violations.
std::vector<std::string> find_lost_microbatches(const std::vector<const ActionList*>& lists, const MeshShape& mesh,
                                                const std::vector<StageUnits>& stages, const std::vector<int>& stage_rank, const Rerouting& rerouting,
                                                bool training);

}  // namespace trireme
