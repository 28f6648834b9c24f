#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// Adds `completion bash|zsh|fish`, which prints a completion script of all commands and options of `app`. Call after every other command was added.
void add_completion_command(CLI::App& app, int& exit_code);

}  // namespace trireme
