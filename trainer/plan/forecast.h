#pragma once
// Forecast of the time and memory of a run, before it starts.
#include <optional>
#include <string>
#include <vector>

#include "parallel/pipeline/step_times.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"
#include "trainer/loop/memory.h"
#include "trainer/plan/step_costs.h"

namespace trireme {

/// Memory of one rank of a pipeline rank, in bytes. For Trireme's own stack it is counted by running the rank on the meta device
/// (trainer/loop/memory.h); for other stacks it follows published formulas.
struct RankBytes {
  double parameters = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;  ///< each at its own peak
  double runtime = 0;                          ///< allowance for the device context, kernels, and buffers of communicators and libraries
  double peak = 0;                             ///< peak of the sum, allowance included
  std::optional<RankMemory> counted = {};      ///< by category and phase; nullopt if computed by formula
  std::optional<RuntimeBytes> allowance = {};  ///< parts of `runtime`; nullopt for a CPU and for other stacks, whose allowance is fitted
};

/// Step time of the critical-path rank in seconds, by cause; the parts sum to step_seconds.
struct StepParts {
  double compute = 0, recompute = 0, bubble = 0, transfer = 0, tensor = 0, gather = 0, reduce = 0, optimizer = 0, host = 0;
};

struct Forecast {
  double step_seconds = 0;
  double step_low = 0, step_high = 0;  ///< nine of ten runs like this lie between them (trainer/plan/forecast_range.h)
  std::string range_basis;             ///< the runs from which the range follows
  double tokens_per_second_per_device = 0;
  double mfu = 0;                 ///< model FLOPs by training_flops_per_token (causal half of attention, no recomputation) over peak
  double mfu_full_attention = 0;  ///< counts all of T x T (T x window with a window), as NVIDIA, nanotron and llm-foundry publish it
  double bubble = 0;              ///< idle share of the step, mean over the pipeline ranks
  StepParts parts;
  std::vector<RankBytes> memory;  ///< by pipeline rank; empty if not requested
  double memory_limit = 0;        ///< device memory, bytes
  bool fits = true;
  bool tight = false;  ///< fits, but leaves less than plan.memory_margin free
  int worst_rank = 0;  ///< pipeline rank with the highest peak
};

/// Step time only. Takes less than a microsecond per stage and simulated micro-batch; of a long schedule few are simulated (step_times). `config` and
/// `cluster` are resolved.
Forecast forecast_time(const Config& config, const ClusterConfig& cluster);
/// Only step_seconds of forecast_time(), in half the time. `costs`: result of step_costs(config, cluster, ...). `schedule`: step_schedule(config).
double step_seconds(const Config& config, const ClusterConfig& cluster, const StepCosts& costs, StepSchedule& schedule);
/// Step time and memory. Takes tens of milliseconds per pipeline rank on Trireme's own stack.
Forecast forecast(const Config& config, const ClusterConfig& cluster);

/// The step time by which a search ranks: that of a tight layout is 2 % longer, so that nearly as fast ones with more room come first.
inline double ranking_seconds(const Forecast& forecast) { return (forecast.tight ? 1.02 : 1) * forecast.step_seconds; }

/// Highest peak of any rank, bytes.
double largest_peak(const std::vector<RankBytes>& memory);
/// Sets memory, memory_limit, worst_rank, fits and tight of a forecast for devices of `limit` bytes, of which `margin` should stay free.
void set_memory(Forecast& forecast, std::vector<RankBytes> memory, double limit, double margin);

/// Peak FLOP/s of a rank's device in the configured precision: the denominator of MFU.
double peak_flops(const Config& config, const ClusterConfig& cluster);

/// Memory by formula, one entry per pipeline rank, for searches and for other systems' stacks. Takes microseconds. Exact for parameters, gradients
/// and optimizer state, within a few percent for the rest (a test compares it with counted_memory). `profiles`: part profiles of config.model.
/// `schedule`: step_schedule(config).
std::vector<RankBytes> formula_memory(const Config& config, const ClusterConfig& cluster, PartProfiles& profiles, StepSchedule& schedule);
std::vector<RankBytes> formula_memory(const Config& config, const ClusterConfig& cluster);
/// Memory of Trireme's own stack, counted on the meta device.
std::vector<RankBytes> counted_memory(const Config& config, const ClusterConfig& cluster);
/// counted_memory for Trireme's own stack, formula_memory for other stacks.
std::vector<RankBytes> memory_of(const Config& config, const ClusterConfig& cluster);

}  // namespace trireme
