#pragma once
// Memory of other systems' ranks by published figures: bytes per parameter, bytes that a layer saves, and the micro-batches in flight of the
// schedule's lists.
#include <limits>
#include <string>
#include <vector>

#include "trainer/plan/forecast.h"

namespace trireme {

/// Memory constants of a system; none is specific to a single run. Weights and activations have 16 bits.
struct StackMemory {
  const char* stack;
  double gradient;                ///< bytes of gradient per parameter, unsharded up to ZeRO-1
  double bf16_sum = 0;            ///< bytes of additional fp32 gradient accumulator per parameter, in bf16 runs, sharded like the gradient
  double optimizer = 12;          ///< bytes of master weight and moments per parameter, sharded from ZeRO-1 on
  bool casts_shards = false;      ///< ZeRO-3: a rank has its part of the weights in fp32 only, and casts it to gather it
  double reduced = 0;             ///< bytes of reduced gradient per parameter, sharded, beside whole accumulators (ZeRO-1)
  bool masks = false;             ///< dropout masks are saved, one byte per element
  double copies = 0;              ///< number of copies of queries, keys and values before attention
  double swiglu = 6;              ///< bytes saved per element of F
  bool saves_operations = false;  ///< selective recomputation saves attention and every second product's result instead of all but the scores
  double backward = 0;            ///< gradients live in a backward, as a multiple of a layer's activations
  double logit = 8;               ///< bytes per logit on the last stage, including fp32 copy and gradients
  double kept_logit = 0;          ///< bytes per logit that the last stage of a pipeline keeps of each other micro-batch of a step
  double fragmentation = 1;       ///< factor on activations for allocator fragmentation
  double runtime = 0;             ///< bytes of context, code and communicators; 0 if the published figure is the allocator's
  double live = std::numeric_limits<double>::infinity();  ///< ZeRO-3: most parameters gathered at a time, with their gradients
  /// Sequence parallelism: the gathered inputs of both branches are saved, where Megatron gathers them again in the backward.
  bool saves_gathered = false;
};
const std::vector<StackMemory>& stack_memories();

/// Memory as the system's authors measure it, one entry per pipeline rank. `config` is resolved. `lists`: steady_lists().
std::vector<RankBytes> stack_memory(const Config& config, const SoftwareConfig& software, PartProfiles& profiles, const ActionLists& lists);

}  // namespace trireme
