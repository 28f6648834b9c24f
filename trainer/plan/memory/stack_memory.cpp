#include "trainer/plan/memory/stack_memory.h"

#include <algorithm>

#include "kernels/core/check.h"
#include "trainer/layout/lowered_schedule.h"
#include "trainer/loop/recompute.h"
#include "trainer/model/dims.h"
#include "trainer/plan/memory/trireme_memory.h"
#include "trainer/plan/stack.h"

namespace trireme {
namespace {

/// Bytes of one layer and micro-batch on one tensor rank.
struct Layer {
  double all;           ///< saved without recomputation
  double saved[3];      ///< saved, by Recompute
  double gathered = 0;  ///< other ranks' parts of the input that a branch gathers; 0 if the input is not saved
};

/// Source: Korthikanti et al. 2022, arXiv:2205.05198, Table 2: s b h (10 + 24/t + 5 a s/(h t)), split into its terms to cover grouped-query attention
/// and SwiGLU. Fused attention saves 4 bytes per row and head instead of the scores, their dropout and its mask.
Layer layer_bytes(const Config& config, const StackMemory& memory, bool fused) {
  const Dims d(config.model, static_cast<int>(config.parallel.tensor));
  const auto tokens = static_cast<double>(config.training.micro_batch_size * config.training.sequence_length);
  const double row = static_cast<double>(d.D) / (config.parallel.sequence_parallel ? static_cast<double>(config.parallel.tensor) : 1);
  const auto packed = static_cast<double>((d.local_N + 2 * d.local_K) * d.H), attended = static_cast<double>(d.local_N * d.H),
             F = static_cast<double>(d.local_F);
  const double scores = static_cast<double>(d.local_N) * (fused ? 4.0 : 5.0 * static_cast<double>(config.training.sequence_length));
  // Inputs of both norms and of the products after them, dropout masks of both branches, inputs of norms behind branches.
  const double split = (1 + memory.copies) * 2 * packed + 2 * attended + (config.model.preset().gated ? memory.swiglu : 4) * F;
  Layer layer;
  if (memory.saves_gathered) layer.gathered = tokens * 2 * (static_cast<double>(d.D) - row);
  const int post_norms = config.model.preset().norms == NormPlacement::kBoth ? 4 : 0;
  layer.all = tokens * (((memory.masks ? 10 : 8) + post_norms) * row + split + scores) + 2 * layer.gathered;
  layer.saved[static_cast<size_t>(Recompute::kNone)] = layer.all;
  layer.saved[static_cast<size_t>(Recompute::kFull)] = tokens * 2 * row;
  double selective = layer.all - tokens * (fused ? 0 : scores);
  if (memory.saves_operations) {
    // The layer's input, attention's result, and the results of every second product of q, k, v, o, w1, w3, w2, starting with q (torchtitan,
    // activation checkpointing "op").
    const double value = (packed - attended) / 2;
    selective = tokens * (2 * row + 2 * attended + scores + 2 * attended + 2 * value + 2 * F + 2 * row);
  }
  layer.saved[static_cast<size_t>(Recompute::kSelective)] = selective;
  return layer;
}

struct StackStage {
  double parameters = 0, saved = 0, backward = 0;
};

class Ranks {
 public:
  Ranks(const Config& config, const StackMemory& memory, bool fused, PartProfiles& profiles)
      : config_(config),
        memory_(memory),
        policy_(zero_policy(config.parallel)),
        profiles_(profiles),
        shape_(profile_shape(config)),
        layer_(layer_bytes(config, memory, fused)),
        recompute_(recompute_policy(config)) {}
  std::vector<RankBytes> all(const ActionLists& lists) const;

 private:
  StackStage stage(int index, bool first_stage_is_local) const;
  RankBytes states(double parameters) const;
  double most_activations(const ActionList& list, const std::vector<StackStage>& stages) const;

  const Config& config_;
  const StackMemory& memory_;
  ZeroPolicy policy_;
  PartProfiles& profiles_;
  ProfileShape shape_;
  Layer layer_;
  std::vector<Recompute> recompute_;
};

/// `first_stage_is_local`: the stage's rank also has the first stage, and therefore a tied embedding table.
StackStage Ranks::stage(int index, bool first_stage_is_local) const {
  const StageRange range = stage_range(*config_.parallel.layers_per_stage, index);
  StackStage stage;
  const std::vector<Part> parts = parts_of(config_.model, range);
  for (const int64_t elements :
       unit_elements(profiles_, parts, stage_units(parts, range, config_.model, first_stage_is_local && !range.first()), shape_))
    stage.parameters += static_cast<double>(elements);
  for (int64_t b = 0; b < range.blocks; ++b) {
    const Recompute how = recompute_[static_cast<size_t>(range.first_block + b)];
    stage.saved += layer_.saved[static_cast<size_t>(how)];
    // Selective recomputation gathers the inputs of both branches again. Two of the gradients of a gathered input live at a time, before their sum is
    // scattered: that of the next of a branch's first products, and the sum of those before it.
    const double again = how == Recompute::kFull ? layer_.all : how == Recompute::kSelective ? 2 * layer_.gathered : 0;
    stage.backward = std::max(stage.backward, again + memory_.backward * layer_.all + 2 * layer_.gathered);
  }
  const int kept = config_.parallel.pipeline > 1 ? microbatches_of(config_) - 1 : 0;  // of the other micro-batches
  if (range.last())
    stage.backward += (memory_.logit + kept * memory_.kept_logit) *
                      static_cast<double>(config_.training.micro_batch_size * config_.training.sequence_length * *config_.model.vocab_size) /
                      static_cast<double>(config_.parallel.tensor);
  return stage;
}

RankBytes Ranks::states(double parameters) const {
  const double shard = policy_.shard, weight = 2, sum = memory_.gradient + (config_.training.precision == Arithmetic::kBf16 ? memory_.bf16_sum : 0);
  RankBytes bytes;
  bytes.parameters = policy_.parameters_resident ? parameters * weight : memory_.casts_shards ? 0 : parameters * weight / shard;
  bytes.gradients = parameters * sum / (policy_.gradients_resident ? 1 : shard);
  const bool reduces = config_.parallel.zero_stage > 0 && policy_.gradients_resident;  // from whole accumulators to shards
  bytes.optimizer = parameters * (memory_.optimizer + (reduces ? memory_.reduced : 0)) / shard;
  // Two gathered layers with their gradients; embedding and head, gathered for the whole step, with the gradient of one of them.
  if (!policy_.parameters_resident) {
    const std::vector<Part>& parts = profiles_.parts();
    const int64_t table = profiles_.of(parts.front(), shape_).units.front(), block = profiles_.of(parts[1], shape_).elements();
    bytes.other = weight * std::min(memory_.live, static_cast<double>(2 * 2 * block + 3 * table));
  }
  return bytes;
}

double Ranks::most_activations(const ActionList& list, const std::vector<StackStage>& stages) const {
  double held = 0, most = 0;
  for (const Action& action : list) {
    const StackStage& stage = stages[static_cast<size_t>(action.stage)];
    // Between I and W the autograd graph keeps all activations, as the published zero-bubble runs show; 32 s b h would suffice (section 2 there).
    if (action.type == ActionType::kForward) held += stage.saved;
    if (action.type == ActionType::kBackward || action.type == ActionType::kBackwardWeight) held -= stage.saved;
    most = std::max(most, held);
    if (action.type == ActionType::kForward) most = std::max(most, held + stage.backward);  // its backward may be the next action
  }
  return most;
}

std::vector<RankBytes> Ranks::all(const ActionLists& lists) const {
  const std::vector<int> stage_rank = stage_ranks(lists);
  std::vector<StackStage> stages;
  for (int s = 0; s < static_cast<int>(stage_rank.size()); ++s) stages.push_back(stage(s, stage_rank[static_cast<size_t>(s)] == stage_rank.front()));
  std::vector<RankBytes> ranks;
  for (size_t r = 0; r < lists.size(); ++r) {
    double parameters = 0;
    for (size_t s = 0; s < stages.size(); ++s)
      if (stage_rank[s] == static_cast<int>(r)) parameters += stages[s].parameters;
    RankBytes bytes = states(parameters);
    bytes.activations = memory_.fragmentation * most_activations(lists[r], stages);
    bytes.runtime = memory_.runtime;
    bytes.peak = bytes.parameters + bytes.gradients + bytes.optimizer + bytes.activations + bytes.other + bytes.runtime;
    ranks.push_back(bytes);
  }
  return ranks;
}

}  // namespace

const std::vector<StackMemory>& stack_memories() {
  static const std::vector<StackMemory> table = {
      // fp16 gradients accumulated in fp32, fp32 master weights and moments: 18 bytes (Megatron-LM, theoretical_memory_usage.py).
      {.stack = "megatron-2021", .gradient = 4, .masks = true},
      // ZeRO-1 over fp16 gradients; the BF16 optimizer adds unsharded fp32 accumulators (DeepSpeed, bf16_optimizer.py). Memory was read from
      // nvidia-smi, so the runtime includes the communicators of a dozen groups, 0.6 to 1.6 GB each (NCCL issues 864 and 964), and a reduction bucket
      // of 500 M elements. Runtime and fragmentation are fitted.
      {.stack = "megatron-deepspeed",
       .gradient = 2,
       .bf16_sum = 4,
       .masks = true,
       .backward = 1,
       .logit = 12,
       .fragmentation = 1.1,
       .runtime = 8.5e9},
      {.stack = "zero-bubble", .gradient = 2, .masks = true},
      {.stack = "megatron-2023", .gradient = 4},
      {.stack = "megatron-2024", .gradient = 4},
      {.stack = "llama-3", .gradient = 4},
      // Parameters are gathered one by one, up to stage3_max_live_parameters (DeepSpeed, runtime/zero/config.py).
      {.stack = "deepspeed-zero3", .gradient = 2, .masks = true, .live = 1e9},
      {.stack = "llm-foundry", .gradient = 2, .logit = 4},
      // fp32 parameters, gradients and moments, all sharded: 16 bytes; in a pipeline, 16-bit weights and the sums of gradients in fp32 stay whole
      // (FSDPParam.to_accumulated_grad_if_needed). Logits: bf16 2, their fp32 copy and log-probabilities 8, both gradients 6. PyTorch's pipeline keeps
      // the logits until the step ends (output_chunks); that their log-probabilities are kept too follows from the memory of torchtitan's pipelines.
      {.stack = "torchtitan", .gradient = 4, .casts_shards = true, .saves_operations = true, .logit = 16, .kept_logit = 6, .saves_gathered = true},
      // fp32 gradient accumulators; master weights and moments, and with ZeRO-1 the shard that the accumulators are reduced to. Queries, keys and
      // values are made contiguous, then rotated.
      {.stack = "nanotron", .gradient = 4, .reduced = 4, .copies = 2, .swiglu = 8},
      {.stack = "llm.c", .gradient = 2, .logit = 2},
      {.stack = "pytorch-fsdp", .gradient = 2},
  };
  return table;
}

std::vector<RankBytes> stack_memory(const Config& config, const SoftwareConfig& software, PartProfiles& profiles, const ActionLists& lists) {
  const std::string& stack = software.stack;
  const bool fused = stack_of(stack).attention != AttentionKernel::kUnfused;
  const auto& table = stack_memories();
  const auto found = std::ranges::find_if(table, [&](const StackMemory& one) { return stack == one.stack; });
  TRIREME_CHECK(found != table.end(), stack, " has no memory figures");
  StackMemory memory = *found;
  // Compiled, the loss does not keep an fp32 copy of the logits beside their log-probabilities (torchtitan, tables 1 and 3).
  if (software.compiled) memory.logit -= 3;
  return Ranks(config, memory, fused, profiles).all(lists);
}

}  // namespace trireme
