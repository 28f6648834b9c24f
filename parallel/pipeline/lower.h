#pragma once
// Pure passes that turn a compute-only schedule into the list a rank runs: parts, sends and receives, and the movement of parameters and gradients.
#include <vector>

#include "parallel/pipeline/action.h"

namespace trireme {

/// A unit that a part reads: of the part's own stage, or of another stage of the same rank (the embedding, where first and last stage are neighbours
/// in a V and a tied head reads the first stage's).
struct UnitRef {
  UnitRef(int of_unit, int of_stage = -1) : unit(of_unit), stage(of_stage) {}
  int unit;
  int stage;  ///< -1: the part's own
  bool operator==(const UnitRef&) const = default;
};

/// What lowering must know of one stage.
struct StageUnits {
  std::vector<std::vector<UnitRef>> units_of_part;  ///< per part, the units whose parameters it reads
  int units = 0;                                    ///< the stage's own
  int tied_unit = -1;                               ///< the unit whose gradient is summed over `embedding`, -1 if none on this stage
  int fused_part = -1;  ///< a part whose I gives the weight gradients too (the head, which never keeps its logits): it has no W; -1 if none
};

/// When full copies come and go: the lifetimes that distinguish ZeRO stages (parallel/sharding/zero_policy.h), in the terms of a list.
struct LoweringPolicy {
  bool unshard_each_use = false;        ///< gather before each use and reshard after it (ZeRO-3 after_use); else once a step, before the first use
  bool reduce_each_microbatch = false;  ///< reduce-scatter after each micro-batch's W (ZeRO-2/3 sharded accumulation); else after the last
  int prefetch = 1;                     ///< units gathered ahead of their use (with unshard_each_use: uses ahead)
  bool receive_ahead = true;            ///< receives are posted before the compute that runs meanwhile; else, for transfers that block, after it
};

/// Order of one lowered rank list, guaranteed:
///  - no transfers between stages of one rank: the executor hands those over.
///  - UNSHARD of a unit is issued before the first part that reads it, `prefetch` parts ahead where possible; RESHARD after the last consecutive use
///    (a unit that the very next computed part of this rank also reads is not resharded in between).
///  - REDUCE_GRADS of a unit follows the last W, or I of a fused part, (of the micro-batch, or of the step) that adds to it; REDUCE_REPLICAS once,
///    after the unit's last REDUCE_GRADS and not before the next unit's; REDUCE_TIED last of all.
///  - WAIT_GRADS of a unit stands where something needs the end of a reduction: before the next reduction of the unit or gradient added to it, and a
///    REDUCE_GRADS is over before the rank's next one starts, so that at most two full gradients of a rank are alive. All are waited for before SUM_PARTIAL.
///  - A list that trains ends with SUM_PARTIAL of each stage, NORM, and UPDATE of each unit.
///  - sends and receives form one global order (the same for both ends), that in which their data comes to be in a timed run of the compute-only schedule
///    (F = I = W = 1), so that even blocking rendezvous transfers cannot deadlock; consecutive ones of the same moment share a group.
ActionLists lower(const ActionLists& compute, const std::vector<StageUnits>& stages, const LoweringPolicy& policy);

/// Most activations that a rank holds over its list, in micro-batches of one stage: from a stage's F of a micro-batch to the last W (or B) of it.
/// With virtual stages one of these is a rank's layers / virtual stages.
int max_in_flight(const ActionList& list);

}  // namespace trireme
