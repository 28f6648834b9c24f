#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

void add_inspect_command(CLI::App& app, int& exit_code);

}  // namespace trireme
