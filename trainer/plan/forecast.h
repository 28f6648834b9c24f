#pragma once
// What a run will take, before it starts.
#include <optional>
#include <string>
#include <vector>

#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/loop/memory.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// Of one rank of a pipeline rank, in bytes. For Trireme's own stack counted by running the rank on the meta device (trainer/loop/memory.h); for
/// another system by its published formulas.
struct RankBytes {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;  ///< each at its own peak
  double runtime = 0;                          ///< device context, kernels, communicators' and libraries' buffers: an allowance
  double peak = 0;                             ///< of the sum, allowance included
  std::optional<RankMemory> counted = {};      ///< in full, by category and phase; nothing where it is by formula
  std::optional<RuntimeBytes> allowance = {};  ///< what `runtime` is made of; nothing of other stacks, whose is fitted, and of a CPU
};

/// Seconds of a step of the rank that has most to do, by what it does or waits for; they sum to step_seconds.
struct StepParts {
  double compute = 0, recompute = 0, bubble = 0, transfer = 0, tensor = 0, gather = 0, reduce = 0, optimizer = 0, host = 0;
};

struct Forecast {
  double step_seconds = 0;
  double step_low = 0,
         step_high = 0;  ///< nine of ten of the published runs lie within this share of their forecasts (which runs: tests/plan/published.yaml)
  double tokens_per_second_per_device = 0;
  double mfu = 0;                 ///< model FLOPs as training_flops_per_token counts them (causal half of attention, no recomputation), over peak
  double mfu_full_attention = 0;  ///< the same with all of T x T counted (T x window under a window), as NVIDIA, nanotron and llm-foundry publish it
  double bubble = 0;              ///< share of the step that the pipeline's ranks idle, mean over them
  StepParts parts;
  std::vector<RankBytes> memory;  ///< by pipeline rank; empty where it was not asked for
  double memory_limit = 0;        ///< bytes of a device
  bool fits = true;
  int worst_rank = 0;  ///< pipeline rank that needs most
};

/// Step time alone, tens of microseconds for each stage and micro-batch at most. `config` and `cluster` are resolved.
Forecast forecast_time(const Config& config, const ClusterConfig& cluster);
/// Its step_seconds alone, in half the time; `costs` are step_costs(config, cluster, ...).
double step_seconds(const Config& config, const ClusterConfig& cluster, const StepCosts& costs);
/// And memory: tens of milliseconds for each pipeline rank on Trireme's own stack.
Forecast forecast(const Config& config, const ClusterConfig& cluster);

/// Bytes of the rank that needs most.
double largest_peak(const std::vector<RankBytes>& memory);
/// Gives a forecast its memory, with what follows from it on devices of `limit` bytes.
void set_memory(Forecast& forecast, std::vector<RankBytes> memory, double limit);

/// FLOP/s of the configured precision on a rank's device: what MFU is a share of.
double peak_flops(const Config& config, const ClusterConfig& cluster);

/// Memory by formulas, microseconds: exact for states, within a few percent for the rest (a test holds it against the counted forecast). For
/// searches, and for other systems' stacks. One entry for each pipeline rank. `profiles` are those of the configuration's model.
std::vector<RankBytes> formula_memory(const Config& config, const ClusterConfig& cluster, PartProfiles& profiles);
std::vector<RankBytes> formula_memory(const Config& config, const ClusterConfig& cluster);
/// Counted, Trireme's own.
std::vector<RankBytes> counted_memory(const Config& config, const ClusterConfig& cluster);
/// Counted where the stack is Trireme's, by formulas where it is another.
std::vector<RankBytes> memory_of(const Config& config, const ClusterConfig& cluster);

}  // namespace trireme
