#pragma once
// Formulas as published, for the models and programs of their authors. `plan --analyse` prints them beside the forecast.
#include <cstdint>

#include "trainer/model/transformer_block.h"

namespace trireme::textbook {

/// Bytes of model states on a rank. Each parameter takes 2 bytes for itself, 2 for its gradient and 12 for fp32 master weight and Adam moments.
/// Stage 1 shards the 12 over `ranks` data ranks, stage 2 also the gradients, stage 3 all 16.
/// Source: Rajbhandari et al. 2020, arXiv:1910.02054, Table 1.
double zero_state_bytes(double parameters, int64_t zero_stage, double ranks);

/// Elements that a rank sends per step for gradients and parameters: 2 P (n-1)/n; 3 P (n-1)/n in stage 3.   Source: the same, section 7.
double zero_elements(double parameters, int64_t zero_stage, double ranks);

/// Bytes per GPU by DeepSpeed's estimators without offloading. Stage 2: 2 P + 18 P / n; stage 3: 4 x largest layer + 18 P / n.
/// Source: estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs of DeepSpeed (deepspeed/runtime/zero, commit edaa722).
double deepspeed_zero2_bytes(double parameters, double devices);
double deepspeed_zero3_bytes(double parameters, double largest_layer, double devices);

struct Block {
  double sequence_length = 0, micro_batch_size = 0, hidden_size = 0, heads = 0;
  double boundary() const { return sequence_length * micro_batch_size * hidden_size; }  ///< elements of an activation [T,D]
};

/// Bytes of activations that a 16-bit GPT block (dropout, GELU, ffn of 4 D, scores kept) saves per micro-batch on each of `tensor` ranks.
/// Source: Korthikanti et al. 2022, arXiv:2205.05198, Table 2.
double block_activation_bytes(const Block& block, double tensor, bool sequence_parallel, Recompute recompute);

/// Number of blocks whose activations the first of `pipeline` stages keeps: `layers` in 1F1B, layers (1 + (p-1)/(p v)) in interleaved 1F1B.
/// Source: the same, section 4.2.3.
double first_stage_blocks(double layers, double pipeline, double virtual_stages);

/// A model and its layout as Megatron-LM's estimator sees them.
struct MegatronRun {
  Block block;
  double layers = 0, ffn_size = 0, vocab_size = 0;
  double block_parameters = 0;  ///< all blocks and the final norm
  bool tied_embeddings = true;
  double tensor = 1, pipeline = 1, data = 1, virtual_stages = 1, microbatches = 1;
  bool distributed_optimizer = false;
};
/// Bytes of parameters, gradients and optimizer on the most loaded rank: 18 per parameter, or 6 + 12 / data with the distributed optimizer.
/// Source: Megatron-LM, megatron/training/theoretical_memory_usage.py (as of commit 00caa53).
double megatron_state_bytes(const MegatronRun& run);
/// Bytes of activations on the first stage with sequence parallelism and selective recomputation.   Source: the same.
double megatron_activation_bytes(const MegatronRun& run);

/// Elements that a tensor rank sends per block and micro-batch: four all-reduces of [T,D], 8 b s h (t-1)/t.
/// Source: Narayanan et al. 2021, arXiv:2104.04473, section 3.2.
double tensor_elements(const Block& block, double tensor);

/// Pipeline bubble as a share of the ideal time, (p-1)/(v m), and of the step.   Source: the same, section 2.2.
double bubble_of_ideal(double pipeline, double microbatches, double virtual_stages);
double bubble_of_step(double pipeline, double microbatches, double virtual_stages);

enum class ZeroBubble : uint8_t { kNone, kH1, kH2 };
/// Bubble of a step in seconds, if F, I and W take `forward`, `input_gradient` and `weight_gradient` seconds on every stage: (p-1)(F+I+W) without
/// zero bubble, (p-1)(F+I-W) for H1, (p-1)(F+I-2W) for H2.   Source: Qi et al. 2024, arXiv:2401.10241, Table 2.
double bubble_seconds(ZeroBubble schedule, double pipeline, double forward, double input_gradient, double weight_gradient);

/// Seconds to train on `tokens` if each of `devices` reaches `flops_per_second`. With 8 P FLOPs per token this is eq. 4 of Narayanan et al. 2021
/// (includes recomputation, leaves out attention and head).
double training_seconds(double flops_per_token, double tokens, double devices, double flops_per_second);

}  // namespace trireme::textbook
