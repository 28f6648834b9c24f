#pragma once
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// The tensors that this rank writes to a checkpoint: "weight/NAME" and the optimizer's state ("exp_avg/NAME", "momentum_buffer/NAME") of the
/// boxes that it owns and counts, and what its Reducer keeps (trainer/loop/reducer_state.h). Over all ranks every element of every parameter is written
/// once; tied copies and replicas are not written. With training.local, "outer_momentum/NAME" too, and the optimizer's state of island K > 0 as
/// "exp_avg.K/NAME". Call it only after a round, when all islands have the same shared weights.
std::vector<StateTensor> state_tensors(Trainer& trainer);

/// The first part of the name of an island's tensors in a checkpoint: "exp_avg" or "exp_avg.1".
std::string saved_kind(const std::string& kind, int64_t island);
/// What the first rank of each island passes, in the order of the islands. Collective.
std::vector<std::string> by_island(Trainer& trainer, const std::string& mine);
/// The same of numbers; empty with one island, as in CheckpointDescription. Collective.
std::vector<int64_t> island_numbers(Trainer& trainer, int64_t mine);

/// Bytes of a checkpoint's tensors over all ranks: weights and optimizer state of every parameter, in the dtype of the master weights.
int64_t state_bytes(const Config& config);

/// Loads this rank's weights from `source`, saved under any layout. Adapters that the source lacks stay as they are. Collective.
/// Errors: DataError on all ranks, naming the tensor that is missing, has another shape, or does not belong to the model.
void load_weights(Trainer& trainer, WeightSource& source);
/// Number of non-finite values per parameter in the current weights; the same result on all ranks. Collective.
NonFinite non_finite_weights(Trainer& trainer);
/// Loads weights, optimizer state, the number of accepted steps and, with dynamic loss scaling, the loss scale, saved under any layout. Every tensor
/// of the checkpoint must belong to the model. The moving average of the weights may be switched on or off at a resume: if the checkpoint has none it
/// starts from the weights, and if the configuration has none that of the checkpoint is ignored. With `new_loss_scale` the loss scale is not loaded
/// but starts from training.loss_scale.initial. Returns what became of the errors of gradient compression if their ranks have changed, of the
/// momentum of the outer step if only one of checkpoint and configuration has one, and of the weights of each island if the configuration keeps none.
/// Collective. Errors: as load_weights.
std::string load_state(Trainer& trainer, CheckpointReader& reader, bool new_loss_scale = false);

}  // namespace trireme
