#pragma once
#include <optional>
#include <string>

#include "parallel/comm/progress.h"
#include "trainer/job/launch_environment.h"
#include "trainer/run/tracer.h"

namespace trireme {

struct RunOptions {
  std::string resume = "auto";       ///< auto | never | a checkpoint's directory
  std::optional<int64_t> max_steps;  ///< stop after this step of the run, checkpoint saved; the schedule stays that of the whole run
  std::optional<StepRange> trace_steps = {};
  std::optional<int> ranks_per_host = {};  ///< for the forecast; nothing: one host has all
  LaunchEnvironment environment = {};      ///< tells which launcher waits for the ranks, and whether a person reads what they print
};

/// Errors: ConfigError where there is no such step to trace, or a GPU runs ahead of the host that would trace it.
void check_trace_steps(const RunOptions& options, const Config& config, int64_t total_steps);

/// Trains to the end of `config` (resolved for this world) or until asked to stop, as one rank of `world`. Collective.
/// `progress` receives this rank's current action. Returns kOk, or kRequeue where a stop was requested (StopRequest): with a checkpoint of the last step it
/// trained, if it trained any.
ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress);

}  // namespace trireme
