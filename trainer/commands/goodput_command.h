#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `goodput RUN [--json]`. Errors are thrown as trireme::Error.
void add_goodput_command(CLI::App& app, int& exit_code);

}  // namespace trireme
