#pragma once
#include <vector>

#include "trainer/config/config.h"
#include "trainer/model/transformer_block.h"

namespace trireme {

/// Model FLOPs per training token: three times the forward's matrix products (2 per weight, embedding lookup excluded, head included) and causal
/// attention (half of T x T), less the weight gradients of frozen matrices. Input gradients count everywhere, because the backward passes through all
/// layers. Recomputation is not counted.   Convention: PaLM, arXiv:2204.02311, with the causal half.
double training_flops_per_token(const ModelConfig& model, int64_t sequence_length);

/// The same with attention counted without the causal mask, T x T or T x window: the convention of PaLM, NVIDIA, nanotron and llm-foundry.
double full_attention_flops_per_token(const ModelConfig& model, int64_t sequence_length);

/// FLOPs of a step with recomputation, divided by full_attention_flops_per_token; 1 without recomputation. `recompute` has one entry per block.
double recomputation_factor(const ModelConfig& model, int64_t sequence_length, const std::vector<Recompute>& recompute);

/// Number of parameters of the model; tied embeddings count once.
int64_t parameter_count(const ModelConfig& model);
/// Those that model.frozen leaves to train.
int64_t trainable_count(const ModelConfig& model);

}  // namespace trireme
