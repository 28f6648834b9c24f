#pragma once
// What NCCL's order of operations makes of a list. The runs set NCCL_LAUNCH_ORDER_IMPLICIT=1, with which an operation on any communicator begins only after
// the operation that the rank issued before it has begun. Each communicator has one stream. So of two operations in flight on one communicator the second
// holds back everything that is issued later on every other one until the first has ended.
// Source: NCCL 2.28, src/enqueue.cc (launchOrder).
#include <span>
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"

namespace trireme {

/// Places in a list: `held` is issued while `behind` waits on its communicator for the end of `first`.
struct LaunchEdge {
  size_t first, behind, held;
  bool operator==(const LaunchEdge&) const = default;
};

/// All such edges of a rank's list, in the order of `held`; only the first action that each pair holds back. Operations that stall the rank anyway end
/// before anything is issued behind them, so they are only held. Sends count as ended with the action that issues them, because their receivers have
/// posted the receive ahead. Groups of one rank of `mesh` issue nothing. `outer_sums`: number of sums over the islands
/// that OUTER leaves in flight. Several of them hold back the next step's first operation on another communicator. First and behind of that edge are both
/// OUTER.
std::vector<LaunchEdge> launch_edges(const ActionList& list, std::span<const StageUnits> stages, const MeshShape& mesh, int outer_sums = 0);

/// The edges of a list by their types: "B waits behind UNSHARD, queued behind REDUCE_GRADS: 62 times", most frequent first.
std::vector<std::string> describe_launch_edges(const ActionList& list, const std::vector<LaunchEdge>& edges);

}  // namespace trireme
