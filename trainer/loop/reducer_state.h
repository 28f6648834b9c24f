#pragma once
// The errors of gradient compression (parallel/sharding/compressed_reducer.h) in checkpoints. Each rank has its own, so a tensor of a checkpoint is
// "KIND.RANK/PARAMETER" with the kind scatter_error and the data rank, or replica_error and the replica, and "owner_error/PARAMETER" for the errors of the
// sums. The second copy of a tied parameter has ".tied" after the rank. A rank reads its own; where the number of ranks has changed, the errors
// of several ranks are added up, so that no gradient is lost.
// The bases of low-rank sums (parallel/sharding/low_rank_reducer.h) are "basis.TENSOR_RANK/PARAMETER", of shape [r,n], saved by the first data rank. Where
// the parts of a matrix that tensor ranks have are others, a basis is drawn again.
// The momenta of data ranks (parallel/sharding/robust_reducer.h) are "worker_momentum.DATA_RANK/PARAMETER", like the optimizer's state of a parameter in
// any layout with as many data ranks; with another number they start at zero.
#include <map>
#include <set>
#include <string>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// True for the first part of the name of such a tensor.
bool is_reducer_kind(const std::string& kind);

/// For each kind in `targets`, the kinds of `stored` whose sum it starts from. Kinds of `stored` without a place are under "".
std::map<std::string, std::vector<std::string>> reducer_sources(const std::set<std::string>& stored, const std::set<std::string>& targets);

/// The tensors that this rank writes.
std::vector<StateTensor> reducer_tensors(Trainer& trainer);
/// Bytes of these tensors over all ranks.
int64_t reducer_bytes(const Config& config);

/// Reads what this rank's Reducer keeps; zero where the checkpoint has none. Returns what changed, as a sentence for the user, or "". Collective.
/// Errors: DataError.
std::string load_reducer_state(Trainer& trainer, CheckpointReader& reader);

}  // namespace trireme
