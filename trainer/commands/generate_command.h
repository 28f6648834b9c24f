#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `generate --checkpoint DIR --prompt TEXT|--prompt-file FILE [--max-tokens N] [--temperature T] [--top-k K] [--top-p P] [--seed S] [--tensor N]
/// [--no-cache]`: prompt and continuation to standard output as they are made. `command_line`: after the program's name; ranks are started with it.
/// Sets `exit_code`; errors are thrown as trireme::Error.
void add_generate_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code);

}  // namespace trireme
