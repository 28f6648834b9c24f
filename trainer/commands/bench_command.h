#pragma once
#include <CLI/CLI.hpp>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `bench kernels [CONFIG] [--set key.path=value]... [--json]`, `bench step CONFIG [--set ...] [--steps N] [--json]`, `bench comm [--ranks N]
/// [--sizes BYTES,...] [--fit] [--cluster FILE] [--json]`, `bench scale CONFIG [--ranks N] [--json]` and `bench machine`: results go to standard output or
/// --output. `arguments`: the command line after the program's name, passed to started ranks. Sets `exit_code`; errors are thrown as trireme::Error.
void add_bench_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& arguments, int& exit_code);

}  // namespace trireme
