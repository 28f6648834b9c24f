#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `compare RUN RUN [--json]`. Sets `exit_code` to 0 if the runs are equal and to 1 if they differ; errors are thrown as trireme::Error.
void add_compare_command(CLI::App& app, int& exit_code);

}  // namespace trireme
