#pragma once
#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <optional>

#include "kernels/core/check.h"
#include "trainer/job/launch_environment.h"
#include "trainer/machine/machine.h"

namespace trireme {

/// One rank's part of a command. It makes its Machine, if any, in `machine`, which outlives the report of a failure: closing a GPU waits for what is
/// queued there, which may never end if another rank has failed.
using RankBody = std::function<ExitCode(std::unique_ptr<Communicator> world, const RankPlace& place, std::optional<Machine>& machine)>;

/// Runs `body` as one rank of the world this process was started in (make_world). After a failure that all ranks agreed on, all ranks return its
/// exit code; any other failure is reported with its rank and ends the job, without closing the GPU. Errors: those of body.
ExitCode run_on_ranks(const LaunchEnvironment& environment, const RankBody& body);

/// Adds `--oversubscribe` to a command that starts ranks; see LaunchOptions::oversubscribe.
void add_oversubscribe_flag(CLI::App& command, bool& oversubscribe);

}  // namespace trireme
