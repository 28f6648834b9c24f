#pragma once
// Pure passes that turn a compute-only plan into the list a rank runs: parts, sends and receives, and the movement of parameters and gradients.
#include <vector>

#include "parallel/pipeline/action.h"

namespace trireme {

/// What lowering must know of one stage.
struct StageUnits {
  std::vector<std::vector<int>> units_of_part;  ///< per part, the units whose parameters it reads
  int units = 0;
  int tied_unit = -1;  ///< the unit whose gradient is summed over `embedding`, -1 if none on this stage
};

/// When full copies come and go: the lifetimes that distinguish ZeRO stages (parallel/sharding/zero_policy.h), in the terms of a list.
struct LoweringPolicy {
  bool unshard_each_use = false;        ///< gather before each use and reshard after it (ZeRO-3 after_use); else once a step, before the first use
  bool reduce_each_microbatch = false;  ///< reduce-scatter after each micro-batch's W (ZeRO-2/3 sharded accumulation); else after the last
  int prefetch = 1;                     ///< units gathered ahead of their use (with unshard_each_use: uses ahead)
};

/// Order of one lowered rank list, guaranteed:
///  - UNSHARD of a unit is issued before the first part that reads it, `prefetch` parts ahead where possible; RESHARD after the last consecutive use
///    (a unit that the very next computed part of this rank also reads is not resharded in between).
///  - REDUCE_GRADS of a unit follows the last W (of the micro-batch, or of the step) that adds to it; REDUCE_REPLICAS once, after the unit's last
///    REDUCE_GRADS and not before the next unit's; REDUCE_TIED last of all.
///  - sends and receives form one global order (the same for both ends), taken from a timed run of the compute plan (F = 1, B = 2), so that even blocking
///    rendezvous transfers cannot deadlock; consecutive ones share a group.
PipelinePlan lower(const PipelinePlan& compute, const std::vector<StageUnits>& stages, const LoweringPolicy& policy);

/// Micro-batches whose activations a rank holds at most, over its whole list: slots for saved activations.
int max_in_flight(const ActionList& list);

}  // namespace trireme
