#pragma once
#include <optional>
#include <string>

#include "parallel/comm/progress.h"
#include "trainer/loop/trainer.h"

namespace trireme {

struct RunOptions {
  std::string resume = "auto";       ///< auto | never | a checkpoint's directory
  std::optional<int64_t> max_steps;  ///< stop after this step of the run, checkpoint saved; the schedule stays that of the whole run
};

/// Trains to the end of `config` (resolved for this world) or until asked to stop, as one rank of `world`. Collective.
/// `progress`: told of what this rank does. Returns kOk, or kRequeue after SIGTERM, SIGINT or SIGUSR1 with a checkpoint saved.
ExitCode run_training(Context& ctx, Communicator& world, const Config& config, const RunOptions& options, Progress& progress);

}  // namespace trireme
