#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `generate --checkpoint DIR --prompt TEXT [--max-tokens N] [--temperature T] [--top-k K] [--top-p P] [--seed S]`: prompt and continuation to standard
/// output as they are made. Sets `exit_code`; errors are thrown as trireme::Error.
void add_generate_command(CLI::App& app, int& exit_code);

}  // namespace trireme
