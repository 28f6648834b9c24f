#pragma once
#include "trainer/config/config.h"

namespace trireme {

/// Model FLOPs of training on one token: three times the forward's matrix products (2 per weight, embedding look-up excluded, head included) and causal
/// attention counted at what it needs, half of T x T. Recomputation is not counted.   Convention: PaLM, arXiv:2204.02311, with the causal half.
double training_flops_per_token(const ModelConfig& model, int64_t sequence_length);

/// The attention's part of it.
double attention_flops_per_token(const ModelConfig& model, int64_t sequence_length);

/// Parameters of the whole model, tied embeddings once.
int64_t parameter_count(const ModelConfig& model);

}  // namespace trireme
