#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/action.h"

namespace trireme {

class WorldClocks;

/// Runs one lowered list for each world rank as if every operation blocked: a transfer completes when its peer has reached it, too (all transfers of
/// a group together), a collective when all members of its group are at the same action. Run time is linear in the total number of actions. Stage s
/// is on pipeline rank stage_rank[s], on none if -1. Returns descriptions of mismatches and, if ranks are stuck, of the ranks that wait for each
/// other; empty if all lists end. `clocks`, if not null, is called for every event.
std::vector<std::string> run_rendezvous(const std::vector<const ActionList*>& lists_by_world_rank, const MeshShape& mesh,
                                        const std::vector<int>& stage_rank, WorldClocks* clocks = nullptr);

}  // namespace trireme
