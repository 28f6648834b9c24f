#include "trainer/plan/formulas.h"

#include <algorithm>

namespace trireme::textbook {

double zero_state_bytes(double parameters, int64_t zero_stage, double ranks) {
  const auto over = [&](int64_t from_stage) { return zero_stage >= from_stage ? ranks : 1; };
  return parameters * (2 / over(3) + 2 / over(2) + 12 / over(1));
}

double zero_elements(double parameters, int64_t zero_stage, double ranks) { return (zero_stage == 3 ? 3 : 2) * parameters * (ranks - 1) / ranks; }

double deepspeed_zero2_bytes(double parameters, double devices) { return 2 * parameters + 18 * parameters / devices; }
double deepspeed_zero3_bytes(double parameters, double largest_layer, double devices) { return 4 * largest_layer + 18 * parameters / devices; }

double block_activation_bytes(const Block& block, double tensor, bool sequence_parallel, Recompute recompute) {
  if (recompute == Recompute::kFull) return 2 * block.boundary();
  const double outside =
      sequence_parallel ? 10 / tensor : 10;  // norms, dropouts and inputs of the two halves: full on each rank, or sharded over the sequence
  const double scores = recompute == Recompute::kSelective ? 0 : 5 * block.heads * block.sequence_length / (block.hidden_size * tensor);
  return block.boundary() * (outside + 24 / tensor + scores);
}

double first_stage_blocks(double layers, double pipeline, double virtual_stages) {
  return virtual_stages > 1 ? layers * (1 + (pipeline - 1) / (pipeline * virtual_stages)) : layers;
}

double megatron_state_bytes(const MegatronRun& run) {
  const double embedding = run.block.hidden_size * run.vocab_size;
  const double embeddings = !run.tied_embeddings && run.pipeline == 1 ? 2 * embedding : embedding;
  return (run.block_parameters / run.pipeline + embeddings) / run.tensor * (run.distributed_optimizer ? 6 + 12 / run.data : 18);
}

double megatron_activation_bytes(const MegatronRun& run) {
  const Block& block = run.block;
  const double tokens = block.sequence_length * block.micro_batch_size;
  double bytes = block.boundary() * (18 + 4 * run.ffn_size / block.hidden_size) * run.layers;
  bytes += (8 * tokens + block.boundary()) * run.pipeline;  // token ids and the embedding's dropout
  if (run.virtual_stages > 1)
    bytes *= 1 + (run.pipeline - 1) / (run.pipeline * run.virtual_stages);
  else
    bytes *= std::min(1.0, run.microbatches / run.pipeline);
  if (run.pipeline == 1) bytes += block.boundary() * 4 * (1 + run.vocab_size / block.hidden_size);  // the head's input, and logits for the loss
  return bytes / run.tensor;
}

double tensor_elements(const Block& block, double tensor) { return 8 * block.boundary() * (tensor - 1) / tensor; }

double bubble_of_ideal(double pipeline, double microbatches, double virtual_stages) { return (pipeline - 1) / (virtual_stages * microbatches); }

double bubble_of_step(double pipeline, double microbatches, double virtual_stages) {
  const double ideal = bubble_of_ideal(pipeline, microbatches, virtual_stages);
  return ideal / (1 + ideal);
}

double bubble_seconds(ZeroBubble schedule, double pipeline, double forward, double input_gradient, double weight_gradient) {
  const double sign = schedule == ZeroBubble::kNone ? 1 : schedule == ZeroBubble::kH1 ? -1 : -2;
  return (pipeline - 1) * (forward + input_gradient + sign * weight_gradient);
}

double training_seconds(double flops_per_token, double tokens, double devices, double flops_per_second) {
  return flops_per_token * tokens / (devices * flops_per_second);
}

}  // namespace trireme::textbook
