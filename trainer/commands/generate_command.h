#pragma once
#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `generate --checkpoint DIR --prompt TEXT|--prompt-file FILE [--max-tokens N] [--temperature T] [--top-k K] [--top-p P] [--seed S] [--tensor N]
/// [--no-cache]`: streams prompt and continuation to standard output. `command_line`: the words after the program's name, passed to started ranks.
/// Sets `exit_code`; errors are thrown as trireme::Error.
void add_generate_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& command_line, int& exit_code);

}  // namespace trireme
