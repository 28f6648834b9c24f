#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `checkpoint import --format hf --output OUT DIR`.
void add_checkpoint_import(CLI::App& checkpoint, int& exit_code);

}  // namespace trireme
