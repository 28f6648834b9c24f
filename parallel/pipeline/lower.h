#pragma once
// Pure passes that turn a compute-only schedule into the list a rank runs: parts, sends and receives, and the movement of parameters and gradients.
#include <algorithm>
#include <vector>

#include "parallel/pipeline/action.h"

namespace trireme {

/// A unit that a part reads: of the part's own stage, or of another stage of the same rank (in a V, first and last stage share a rank, and a tied
/// head reads the first stage's embedding).
struct UnitRef {
  UnitRef(int of_unit, int of_stage = -1) : unit(of_unit), stage(of_stage) {}
  int unit;
  int stage;  ///< -1: the part's own stage
  bool operator==(const UnitRef&) const = default;
};

/// Description of one stage for lowering.
struct StageUnits {
  std::vector<std::vector<UnitRef>> units_of_part;  ///< per part, the units whose parameters it reads
  int units = 0;                                    ///< number of the stage's own units
  int tied_unit = -1;                               ///< the unit whose gradient is summed over `embedding`, -1 if none on this stage
  int fused_part = -1;  ///< a part without W, whose I also computes the weight gradients (the head, which never keeps its logits); -1 if none
  bool has_matrix_updates = false;   ///< the optimizer updates whole matrices, of which the stage has some
  int recomputing_part = -1;         ///< a part whose W reads its parameters, too (the head, if samples are clipped before its W); -1 if none
  std::vector<int> frozen = {};      ///< own units that are not trained: they are gathered, but have no gradient and no update
  std::vector<int> kept_whole = {};  ///< own units that are gathered once a step, whatever the policy: adapters, which W and CLIP read, too

  bool trainable(int unit) const { return std::ranges::find(frozen, unit) == frozen.end(); }
  bool keeps_whole(int unit) const { return std::ranges::find(kept_whole, unit) != kept_whole.end(); }
};

/// What a list that trains does after the sums of its gradients.
struct StepEnd {
  std::vector<ActionType> actions = {ActionType::kNorm};  ///< those of ActionScope::kStep, ascending
  bool updates = true;                                    ///< UPDATE of each unit; false: EXCHANGE takes its place
};

/// When full copies are gathered and freed: the lifetimes that distinguish ZeRO stages (parallel/sharding/zero_policy.h), in terms of a list.
struct LoweringPolicy {
  bool unshard_each_use = false;        ///< gather before each use and reshard after it (ZeRO-3 after_use); else once a step, before the first use,
                                        ///< as units that StageUnits keeps whole always are
  bool reduce_each_microbatch = false;  ///< reduce-scatter after each micro-batch's W (ZeRO-2/3 sharded accumulation); else after the last
  int prefetch = 1;                     ///< number of parameter-reading parts by which a gather is issued ahead of its use
  bool receive_ahead = true;            ///< receives are posted before the compute that overlaps them; false, for blocking transfers: after it
  StepEnd end = {};
};

/// Lowers a schedule. Guarantees for each rank's list:
///  - There are no transfers between stages of one rank: the executor hands those over.
///  - UNSHARD of a unit is issued before the first part that reads it, `prefetch` parts ahead where possible; RESHARD after the last consecutive use
///    (a unit that the very next computed part of this rank also reads is not resharded in between).
///  - Frozen units have no REDUCE_*, no WAIT_GRADS and no UPDATE. A rank with frozen units alone still takes part in the other actions.
///  - REDUCE_GRADS of a trainable unit follows the last W, or I of a fused part, (of the micro-batch, or of the step) that adds to it; REDUCE_REPLICAS once,
///    after the unit's last REDUCE_GRADS and not before the next unit's; REDUCE_TIED last of all.
///  - WAIT_GRADS of a unit comes before the first action that needs the completed reduction: the unit's next reduction, or a part that adds to its
///    gradient. A REDUCE_GRADS is also waited for before the rank's next one, so that at most two full gradients of a rank are alive. All are waited
///    for before SUM_PARTIAL.
///  - A list that trains ends with SUM_PARTIAL of each stage and what LoweringPolicy::end says. First come those of its actions that stand before UPDATE
///    in ActionType. Each stage follows with ORTHOGONALIZE, if it has matrix updates, and UPDATE of each trainable unit. The other actions of `end` are last.
///  - Sends and receives follow one global order (the same for both ends): that in which their data becomes available in a timed simulation of the
///    compute-only schedule (F = I = W = 1). So even blocking rendezvous transfers cannot deadlock. Consecutive ones of the same time share a group.
ActionLists lower(const ActionLists& compute, const std::vector<StageUnits>& stages, const LoweringPolicy& policy);

/// The schedule with every sample's gradient clipped between I and W: B becomes I, CLIP follows a rank's last I of a
/// micro-batch, and WAIT_CLIP and W of all its stages follow `rank` input gradients later, or at the end of its list: that is when the first stage's I ends
/// in 1F1B, so a rank rarely waits. It keeps what W needs for at most that many further micro-batches.
ActionLists with_sample_clipping(const ActionLists& compute);

/// The list of a data rank that has `skipped` micro-batches fewer than the list: without compute and transfers of the first ones; the others are
/// numbered from 0. What data ranks do together stays, so ranks with different numbers of micro-batches meet in the same collectives. Its pipeline ranks
/// leave out both ends of a transfer, and lists without a deadlock have none without it. The last micro-batch is on every rank, so that reductions
/// overlap its backward.
ActionList without_first(ActionList list, int skipped);

/// Peak number of micro-batches whose activations a rank holds, summed over its stages: each from the stage's F of a micro-batch to its last W (or
/// B). With virtual stages each of them covers (the rank's layers / virtual stages) layers.
int max_in_flight(const ActionList& list);

}  // namespace trireme
