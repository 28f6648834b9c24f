#pragma once
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/action.h"

namespace trireme {

class WorldClocks;

/// Runs one lowered list for each world rank as if every operation blocked: a transfer ends when its peer is there too (all of a group together),
/// a collective when all members of its group are at the same action. Time is linear in the actions of all ranks, whatever the number of ranks.
/// Stage s lives on pipeline rank stage_rank[s], nowhere if -1. Returns mismatches and, where ranks are stuck, those that wait for each other and for
/// what, in words; empty = all lists end. `clocks`, where given, are told of all that happens.
std::vector<std::string> run_rendezvous(const std::vector<const ActionList*>& lists_by_world_rank, const MeshShape& mesh,
                                        const std::vector<int>& stage_rank, WorldClocks* clocks = nullptr);

}  // namespace trireme
