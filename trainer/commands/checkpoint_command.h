#pragma once
#include <CLI/CLI.hpp>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `checkpoint inspect DIR [--json]`: prints the contents of a checkpoint from its manifest. `checkpoint verify DIR`: reads all of it; DataError
/// names the damaged file or tensor. DIR may be a run directory, which means its newest checkpoint, damaged or not. Sets `exit_code`; errors are
/// thrown as trireme::Error.
void add_checkpoint_command(CLI::App& app, const LaunchEnvironment& environment, int& exit_code);

}  // namespace trireme
