#pragma once
#include <optional>
#include <set>
#include <string>

#include "parallel/comm/progress.h"
#include "trainer/federation/role.h"
#include "trainer/job/launch_environment.h"
#include "trainer/resilience/rank_record.h"
#include "trainer/run/tracer.h"

namespace trireme {

struct RunOptions {
  std::string resume = "auto";        ///< auto | never | the directory of a checkpoint or of a run
  std::set<std::string> change = {};  ///< keys that may differ from the checkpoint's configuration (changeable_keys)
  std::optional<int64_t> max_steps;   ///< save a checkpoint and stop after this step; the learning-rate schedule remains that of the complete run
  std::optional<StepRange> trace_steps = {};
  std::optional<int> ranks_per_host = {};           ///< nullopt: all ranks are on one host
  RankRecord* record = nullptr;                     ///< gets its files once this job owns the run directory; null: this rank leaves none
  std::optional<federation::Role> federation = {};  ///< whose coordinator or member this run is; the configuration is config_of() of it
  LaunchEnvironment environment = {};               ///< which launcher started the ranks, and whether standard output is a terminal
};

/// Errors: ConfigError if a step to trace is after the end of the run, or with training.asynchronous.
void check_trace_steps(const RunOptions& options, const Config& config, int64_t total_steps);

/// Trains to the end of `config` (resolved for this world) or until a stop is requested, as one rank of `world`. Collective.
/// `progress` receives this rank's current action. Returns kOk, or kRequeue if a stop was requested (StopRequest); then the last trained step, if
/// any, has been saved in a checkpoint.
ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress);

}  // namespace trireme
