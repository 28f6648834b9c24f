#pragma once
#include <nlohmann/json.hpp>
#include <string>

#include "kernels/core/context.h"
#include "parallel/comm/communicator.h"
#include "trainer/bench/measure.h"
#include "trainer/config/config.h"

namespace trireme::bench {

struct StepOptions {
  int64_t steps = 10;
  int64_t warmup = 3;       ///< untimed steps before the measurement
  Effort effort;            ///< effort per product of the ceiling
  bool operations = false;  ///< also run operations_of
};

/// Trains `config` (resolved for this world) on random tokens, in the same way as `train`, without writing files:
/// {"model", "parameters", "precision", "training", "tokens_per_step", "steps", "step_seconds": {"median", "low", "high", "mean"},
///  "tokens_per_second": {same}, "model_tflops", "gemm_ceiling_tflops", "share_of_gemm_ceiling", "mfu", "phases": [{"phase", "seconds", "share"}],
///  "memory_bytes": {category: peak, "peak", "arena"}, "resident_bytes": {"before", "peak", "beyond"}, "system_allocations",
///  "plain_products": {"per_step", "shapes": [text]}, "cudnn_attention": to_json(AttentionKernels), "loss": {"first", "last"}, "operations", "environment"}.
/// operations: only if options.operations is set.
/// TFLOP/s are totals of the job. gemm_ceiling_tflops: all ranks run the products of their own shapes at the same time, before the steps.
/// mfu: null if the peak is unknown. phases: see phases_of.
/// memory_bytes: maximum over the ranks. resident_bytes: resident memory of the process, maximum over the ranks. before: before the model is created;
/// peak: in the timed steps; beyond: peak - before - (parameters, gradients and optimizer state). null if the kernel does not report it.
/// system_allocations: of rank 0 in the timed steps. plain_products: see PlainProducts; null on a CPU. cudnn_attention:
/// null without kernels.attention: cudnn.
/// Collective; the result is valid on rank 0. Errors: ConfigError if the GPU has too little memory.
nlohmann::ordered_json bench_step(Context& ctx, Communicator& world, const Config& config, const StepOptions& options);

/// The result as text.
std::string step_text(const nlohmann::ordered_json& result);

}  // namespace trireme::bench
