#pragma once
// Every rank of the world at once: each advances along its own list and meets its neighbours, its tensor group and the groups that share its units.
#include <functional>
#include <map>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/timeline.h"

namespace trireme {

/// Why a rank that could compute does not.
enum class WaitCause : uint8_t {
  kStage,     ///< the neighbouring stage has not handed over yet: bubble
  kTransfer,  ///< what it handed over is on its way
  kTensor,    ///< a slower rank of the tensor group
  kGather,    ///< a unit's parameters
  kReduce,    ///< a unit's gradient, within the list or at its end
  kLast,      ///< the last rank of all, which the update waits for
};
constexpr size_t kWaitCauses = static_cast<size_t>(WaitCause::kLast) + 1;
const char* name_of(WaitCause cause);  ///< "stage", "transfer", ...

struct WorldCosts {
  /// As in simulate(): of compute, what a rank's own device does and its tensor group's communication; of a receive, the transfer; of UNSHARD,
  /// RESHARD, REDUCE_* and WAIT_GRADS only what they take from the rank's compute; of UPDATE the update. SUM_PARTIAL and NORM are taken to be free.
  std::function<double(const Action&)> seconds;
  /// Of UNSHARD and REDUCE_*, from the moment when all of the group are there: it runs beside the compute, after what the same group issued before.
  std::function<double(const Action&)> collective;
  /// Stragglers: by world rank, what its device's own part of compute is multiplied with; 1 for who is not named.
  std::map<int, double> slowdown = {};
  /// Of compute's `seconds` those of the tensor group's communication, which nobody's speed changes.
  std::function<double(const Action&)> tensor = {};
};

/// Seconds of one rank: end = compute + held + the waits before kLast, then kLast and update.
struct RankTimes {
  double end = 0;      ///< it reaches NORM, or in a list without one its end
  double compute = 0;  ///< F, B, I, W at its own speed
  double held = 0;     ///< what UNSHARD, RESHARD and REDUCE_* took from its compute
  double update = 0;   ///< UPDATE
  double waits[kWaitCauses] = {};
};

struct WorldSimulation {
  std::vector<RankTimes> ranks;       ///< by world rank
  std::map<int, Timeline> timelines;  ///< of the ranks asked for: compute once all members of its tensor group are there, collectives until they end
  double step_seconds = 0;            ///< the last end of all
};

/// One list for each world rank out of `lists`: as many, or one for each pipeline rank that all its (replicate, shard, tensor) coordinates share.
/// Errors: InternalError for another number of lists.
std::vector<const ActionList*> lists_of_ranks(const std::vector<ActionList>& lists, const MeshShape& mesh);

/// Where each stage lives by the lists themselves; -1 for a stage that none of them computes.
std::vector<int> stage_ranks(const std::vector<const ActionList*>& lists, const MeshShape& mesh, size_t stages);

/// Runs the lists of all ranks, lowered and free of ListCheck's violations (validate.h), in one thread. What is asynchronous holds a rank only where
/// the program does: a receive or UNSHARD at what reads it, a reduction at its WAIT_GRADS. SUM_PARTIAL and NORM hold all of their group. For one pipeline the times are simulate()'s. Memory: a few kilobytes a
/// rank, besides the timelines of `traced`.
/// Errors: InternalError naming the ranks for lists that could deadlock under rendezvous semantics, though these times would have hidden it.
WorldSimulation simulate_world(const std::vector<const ActionList*>& lists_by_world_rank, const MeshShape& mesh,
                               const std::vector<StageUnits>& stages, const WorldCosts& costs, const std::vector<int>& traced = {});

}  // namespace trireme
