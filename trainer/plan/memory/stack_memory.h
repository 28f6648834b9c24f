#pragma once
// Memory of other systems' ranks by what they and the papers publish: bytes of a parameter, bytes a layer keeps, and the micro-batches in flight by
// the lists of the schedule.
#include <string>
#include <vector>

#include "trainer/plan/forecast.h"

namespace trireme {

/// Few figures with a meaning for each system; none belongs to a single run. 16-bit weights and activations.
struct StackMemory {
  const char* stack;
  double gradient;        ///< bytes of a parameter's gradient, held whole up to ZeRO-1
  double bf16_sum;        ///< and of its fp32 sum beside it, held whole where the run is in bf16
  double optimizer;       ///< bytes of a parameter of master weight and moments, sharded from ZeRO-1 on
  bool masks;             ///< dropout masks are kept, one byte an element
  double copies;          ///< times queries, keys and values are copied on their way to attention
  double swiglu;          ///< bytes kept for each element of F
  bool saves_operations;  ///< recompute selective keeps attention and every second product's result instead of all but the scores
  double backward;        ///< gradients under way, in activations of a layer
  double logit;           ///< bytes of a logit on the last stage, with its fp32 copy and gradients
  double fragmentation;   ///< of the allocator, on activations
  double runtime;         ///< context, code, communicators: 0 where the published figure is what the allocator gave out
  double live;            ///< of ZeRO-3: most parameters gathered at a time, with their gradients
};
const std::vector<StackMemory>& stack_memories();

/// One entry for each pipeline rank, as its authors measure it. `config` is resolved. Errors: ConfigError naming the stacks there are.
std::vector<RankBytes> stack_memory(const Config& config, const std::string& stack, PartProfiles& profiles);

}  // namespace trireme
