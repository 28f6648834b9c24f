#pragma once
#include <CLI/CLI.hpp>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `checkpoint inspect DIR [--json]`: what a checkpoint holds, from its manifest. `checkpoint verify DIR`: reads all of it; DataError names what is damaged. DIR
/// may be a run directory: then the newest checkpoint, damaged or not. Sets `exit_code`; errors are thrown as trireme::Error.
void add_checkpoint_command(CLI::App& app, const LaunchEnvironment& environment, int& exit_code);

}  // namespace trireme
