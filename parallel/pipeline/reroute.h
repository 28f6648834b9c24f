#pragma once
// Steps while some ranks are gone: an edit of lowered lists that gives the micro-batches of one stage of one pipeline to the same stage of other
// pipelines, in whose bubbles they are computed as far as there are any.   Source: ReCycle, Gandhi et al. 2024, arXiv:2405.14009.
#include <vector>

#include "parallel/pipeline/action.h"

namespace trireme {

struct MeshShape;  // parallel/mesh.h

/// The ranks of one pipeline rank and one data rank, whatever their tensor rank.
struct PipelinePlace {
  int data = 0;
  int pipeline = 0;
  bool operator==(const PipelinePlace&) const = default;
};

/// A micro-batch by the pipeline that it belongs to, and its number there.
struct MicrobatchOrigin {
  int data = 0;
  int microbatch = 0;
  bool operator==(const MicrobatchOrigin&) const = default;
};

/// Who computes which micro-batch. A relieved rank begins no micro-batch from `from` on; helpers, the same pipeline rank of all other data ranks that are
/// not relieved, compute them. On a rank the first `microbatches` numbers are its own micro-batches, and the next are those of other pipelines.
struct Rerouting {
  int data_ranks = 1;
  int pipeline_ranks = 1;
  int microbatches = 0;  ///< micro-batches per data rank
  int from = 0;
  std::vector<PipelinePlace> relieved;
  std::vector<std::vector<std::vector<MicrobatchOrigin>>> added;  ///< by data rank and pipeline rank: what the rank computes for other pipelines

  bool relieves(int data, int pipeline) const;
  /// Who computes micro-batch `microbatch` of `data` on pipeline rank `pipeline`: the data rank and the number there.
  MicrobatchOrigin place(int data, int pipeline, int microbatch) const;
  /// The micro-batch that has number `number` on a rank.
  MicrobatchOrigin origin(int data, int pipeline, int number) const;
};

/// Spreads the micro-batches of the relieved ranks evenly over their helpers: one after the other, so that the numbers of two helpers of a pipeline rank
/// differ by at most one. Errors: InternalError if a relieved rank is not in the mesh or named twice, or if nobody could help it.
Rerouting make_rerouting(int data_ranks, int pipeline_ranks, int microbatches, int from, const std::vector<PipelinePlace>& relieved);

/// The lists of all pipelines, by data rank and pipeline rank. `lists`: lowered, by pipeline rank, of the same number of micro-batches for all data
/// ranks, without CLIP.
/// A helper computes a micro-batch of another pipeline directly after its own one of the same number, part by part where parameters or gradients move
/// in between, else after the whole one. So the collectives of the list stay as they are, on relieved ranks too, and every rank of a stage meets the
/// others in the order that it had. Transfers of the same time follow the order of the pipelines, so lists without a deadlock have none afterwards.
/// A helper keeps the activations of both.
std::vector<ActionLists> reroute(const ActionLists& lists, const Rerouting& rerouting);

/// The list of each world rank. Errors: InternalError for another number of data or pipeline ranks.
std::vector<const ActionList*> lists_of_ranks(const std::vector<ActionLists>& lists, const MeshShape& mesh);

}  // namespace trireme
