#pragma once
#include <CLI/CLI.hpp>

#include "trainer/job/launch_environment.h"

namespace trireme {

void add_sweep_command(CLI::App& app, const LaunchEnvironment& environment, int& exit_code);

}  // namespace trireme
