#pragma once
#include <vector>

#include "trainer/config/config.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// Model FLOPs of training on one token: three times the forward's matrix products (2 per weight, embedding look-up excluded, head included) and causal
/// attention counted at what it needs, half of T x T. Recomputation is not counted.   Convention: PaLM, arXiv:2204.02311, with the causal half.
double training_flops_per_token(const ModelConfig& model, int64_t sequence_length);

/// The same with all scores of attention counted, T x T or under a window T x window: the convention of PaLM's authors, NVIDIA, nanotron and llm-foundry.
double full_attention_flops_per_token(const ModelConfig& model, int64_t sequence_length);

/// Those of a step that recomputes, as a share of full_attention_flops_per_token; `recompute` has an entry for each block. 1 where nothing is recomputed.
double recomputation_factor(const ModelConfig& model, int64_t sequence_length, const std::vector<Recompute>& recompute);

/// Parameters of the whole model, tied embeddings once.
int64_t parameter_count(const ModelConfig& model);

}  // namespace trireme
