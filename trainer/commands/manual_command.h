#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `trireme manual [COMMAND...] [--output DIR]`: manual pages in man(7) form, made from the declarations of the command line. Call last.
void add_manual_command(CLI::App& app, int& exit_code);

}  // namespace trireme
