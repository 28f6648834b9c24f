#pragma once
#include <CLI/CLI.hpp>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `doctor [CONFIG] [--set key.path=value]... [--hosts FILE] [--json]`: what this machine, or all ranks of the job, can do for a run. `command_line`: the
/// words after the program's name, passed to started ranks. Sets `exit_code` to kFindings if a check is bad; errors are thrown as trireme::Error.
void add_doctor_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code);

}  // namespace trireme
