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
  int64_t warmup = 3;       ///< steps before the clock runs
  Effort effort;            ///< of each product of the ceiling
  bool operations = false;  ///< operations_of too
};

/// Trains `config` (resolved for this world) on random tokens, as `train` would, and writes nothing:
/// {"model", "parameters", "precision", "training", "tokens_per_step", "steps", "step_seconds": {"median", "low", "high", "mean"},
///  "tokens_per_second": {same}, "model_tflops", "gemm_ceiling_tflops", "share_of_gemm_ceiling", "mfu", "phases": [{"phase", "seconds", "share"}],
///  "memory_bytes": {category: peak, "peak", "arena"}, "resident_bytes": {"before", "peak", "beyond"}, "system_allocations",
///  "loss": {"first", "last"}, "operations", "environment"}. "operations" only where options ask for it.
/// TFLOP/s are the whole job's. The ceiling: every rank at once on the products of its own shapes, before the steps. mfu: null where no peak is known.
/// phases: as phases_of says; null on a GPU, where the host does not see when work is done. memory_bytes: the largest over the ranks.
/// resident_bytes: of the process, before there is a model, at most in the timed steps, and what of the difference is neither parameters nor gradients
/// nor optimizer state; the largest over the ranks; null where the kernel does not say.
/// system_allocations: rank 0's in the timed steps.
/// Collective; the result is rank 0's. Errors: ConfigError where the GPU has not the memory.
nlohmann::ordered_json bench_step(Context& ctx, Communicator& world, const Config& config, const StepOptions& options);

/// The same for people.
std::string step_text(const nlohmann::ordered_json& result);

}  // namespace trireme::bench
