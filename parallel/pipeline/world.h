#pragma once
// Simulates every rank of the world: each advances along its own list and meets its neighbours, its tensor group and the groups that share its units.
#include <functional>
#include <map>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/timeline.h"

namespace trireme {

/// Why a rank is idle.
enum class WaitCause : uint8_t {
  kStage,     ///< the neighbouring stage has not produced its output yet: bubble
  kTransfer,  ///< the output of the neighbouring stage is in transit
  kTensor,    ///< a rank of the tensor group is slower
  kGather,    ///< a unit's parameters are being gathered
  kReduce,    ///< a unit's gradient is being reduced, within the list or at its end
  kLast,      ///< the update waits for the slowest rank of the world
};
constexpr size_t kWaitCauses = static_cast<size_t>(WaitCause::kLast) + 1;
const char* name_of(WaitCause cause);  ///< "stage", "transfer", ...

struct WorldCosts {
  /// As in simulate(). Compute: the work of the rank's own device plus its tensor group's communication. Receive: the transfer. UNSHARD, RESHARD,
  /// REDUCE_* and WAIT_GRADS: only the time for which they block the rank's compute. UPDATE and NOISE: their own. SUM_PARTIAL, AGGREGATE, NORM,
  /// ORTHOGONALIZE, OUTER and EXCHANGE are assumed to be free.
  std::function<double(const Action&)> seconds;
  /// Seconds of UNSHARD and REDUCE_* from the time at which all members of the group have reached it. The collective overlaps compute and starts
  /// after the group's earlier ones.
  std::function<double(const Action&)> collective;
  /// Stragglers, by world rank: factor on the device's own part of compute; 1 for ranks that are not listed.
  std::map<int, double> slowdown = {};
  /// The part of a compute action's `seconds` that is communication of the tensor group, which `slowdown` does not change.
  std::function<double(const Action&)> tensor = {};
  /// NCCL's order of operations (launch_order.h): an operation begins only after the one that its rank issued before it has begun, and the transfers of a
  /// rank follow each other. Compute with communication of the tensor group begins with it, which is the latest that it can be held back.
  bool in_launch_order = false;
};

/// Seconds of one rank: end = compute + held + all waits but kLast; kLast and update follow.
struct RankTimes {
  double end = 0;      ///< time at which it reaches AGGREGATE or NORM or, in a list without them, the end
  double compute = 0;  ///< F, B, I, W at its own speed
  double held = 0;     ///< compute time blocked by UNSHARD, RESHARD and REDUCE_*
  double update = 0;   ///< UPDATE, and what else a rank does alone after `end`
  double waits[kWaitCauses] = {};
};

struct WorldSimulation {
  std::vector<RankTimes> ranks;       ///< by world rank
  std::map<int, Timeline> timelines;  ///< by traced rank: compute from the arrival of the tensor group's last member, collectives until they end
  double step_seconds = 0;            ///< the last end of all ranks
};

/// One list for each world rank. `lists` has one for each world rank, or one for each pipeline rank that all its (replicate, shard, tensor)
/// coordinates share. Errors: InternalError for another number of lists.
std::vector<const ActionList*> lists_of_ranks(const std::vector<ActionList>& lists, const MeshShape& mesh);

/// The pipeline rank of each stage according to the lists; -1 for a stage that none of them computes.
std::vector<int> stage_ranks(const std::vector<const ActionList*>& lists, const MeshShape& mesh, size_t stages);

/// Simulates the lists of all ranks in one thread. The lists must be lowered and free of the violations that validate() finds in a single list.
/// Asynchronous actions block a rank only where they would in a run: a receive or UNSHARD at the part that reads it, a reduction at its WAIT_GRADS.
/// SUM_PARTIAL and the collectives after it block all of their group. For one pipeline the times equal those of simulate(). Memory: a few kilobytes per rank, plus the
/// timelines of `traced`.
/// Errors: InternalError naming the ranks if the lists could deadlock under rendezvous semantics, even if they would not with these times.
WorldSimulation simulate_world(const std::vector<const ActionList*>& lists_by_world_rank, const MeshShape& mesh,
                               const std::vector<StageUnits>& stages, const WorldCosts& costs, const std::vector<int>& traced = {});

}  // namespace trireme
