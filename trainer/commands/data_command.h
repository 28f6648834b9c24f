#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `data build --tokenizer SPEC --output DIR FILE...` and `data inspect DIR [--json]`. Sets `exit_code`; errors are thrown as trireme::Error.
void add_data_command(CLI::App& app, int& exit_code);

}  // namespace trireme
