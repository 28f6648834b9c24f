#pragma once
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/checkpoint/checkpoint_reader.h"
#include "trainer/huggingface/weight_source.h"
#include "trainer/loop/trainer.h"

namespace trireme {

/// What this rank puts into a checkpoint: "weight/NAME" and the optimizer's state, as "exp_avg/NAME" and "exp_avg_sq/NAME" of AdamW, of the boxes it owns and counts, so that over all ranks every
/// element of every parameter is written once, tied copies and replicas never.
std::vector<StateTensor> state_tensors(Trainer& trainer);

/// Bytes of all of these together: weights and the optimizer's state of every parameter, in the dtype of the masters.
int64_t state_bytes(const Config& config);

/// Fills this rank's boxes from a checkpoint of any layout. Errors: DataError naming the tensor that is missing, has another shape, or is not the model's,
/// agreed on by all ranks. Collective, both.
void load_weights(Trainer& trainer, WeightSource& source);
/// Of the weights that are loaded; the same on every rank. Collective.
NonFinite non_finite_weights(Trainer& trainer);
/// Weights, the optimizer's state, the count of accepted steps, and the loss scale where that is dynamic; every tensor of the checkpoint must belong to the model.
/// The moving average of the weights may be switched on and off between two parts of a run: where the checkpoint has none it begins with the weights, and
/// where the configuration has none that of the checkpoint is not read.
void load_state(Trainer& trainer, CheckpointReader& reader);

}  // namespace trireme
