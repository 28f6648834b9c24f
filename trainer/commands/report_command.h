#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `report RUN... [--output FILE] [--svg|--csv]`. Sets `exit_code`; errors are thrown as trireme::Error.
void add_report_command(CLI::App& app, int& exit_code);

}  // namespace trireme
