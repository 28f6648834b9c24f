#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `data build --output DIR [options] FILE|DIR...` and `data inspect PATH [--json]`. Sets `exit_code`; errors are thrown as trireme::Error.
void add_data_command(CLI::App& app, int& exit_code);

}  // namespace trireme
