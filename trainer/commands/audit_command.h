#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `trireme audit verify` and `trireme audit keygen`.
void add_audit_command(CLI::App& app, int& exit_code);

}  // namespace trireme
