#pragma once
// Proves that lowered lists are complete and cannot deadlock, under rendezvous semantics as strict as NCCL's: each rank runs its list in order, a
// send completes only with its receive, a collective only when every member of its group has reached it. MPI's eager sends would hide a deadlock.
#include <string>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/pipeline/lower.h"
#include "parallel/pipeline/reroute.h"

namespace trireme {

/// `lists`: one for each world rank, or one for each pipeline rank that all (replicate, shard, tensor) coordinates share.
/// Collectives of all axes are checked together: UNSHARD and REDUCE_GRADS over `shard`, REDUCE_REPLICAS over `replicate`, REDUCE_TIED over
/// `embedding`; F, B, I, W count as collectives over `tensor`.
/// Returns a description of every violation (empty: proven): deadlock (with what each stuck rank waits for), compute before its input or its
/// parameters, a missing or duplicate micro-batch, an unmatched message, a gradient never reduced, a unit never resharded, an action of `end` that is
/// missing or out of order, and any other action of ActionScope::kStep.
std::vector<std::string> validate(const std::vector<ActionList>& lists, const MeshShape& mesh, const std::vector<StageUnits>& stages,
                                  int microbatches, bool training, const StepEnd& end = {});

/// The same for rerouted lists, one for each world rank, of all pipelines together. Also proves that every part of every micro-batch of every pipeline is
/// computed once, that a relieved rank begins none from Rerouting::from on, and that both ends of a transfer mean the same micro-batch.
std::vector<std::string> validate(const std::vector<const ActionList*>& lists, const MeshShape& mesh, const std::vector<StageUnits>& stages,
                                  const Rerouting& rerouting, bool training, const StepEnd& end = {});

}  // namespace trireme
