#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `trireme tokenizer train | encode | decode`.
void add_tokenizer_command(CLI::App& app, int& exit_code);

}  // namespace trireme
