#pragma once
#include <CLI/CLI.hpp>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `checkpoint export --format hf --output OUT DIR`. Sets `exit_code`; errors are thrown as trireme::Error.
void add_checkpoint_export(CLI::App& checkpoint, const LaunchEnvironment& environment, int& exit_code);

}  // namespace trireme
