#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// `submit CONFIG [--nodes N] [--time T] [--partition P] ... [--dry-run] [--set key.path=value]... [-- options of train]`: writes a batch script for the
/// Slurm cluster that it finds, and submits it. Sets `exit_code`; errors are thrown as trireme::Error.
void add_submit_command(CLI::App& app, int& exit_code);

}  // namespace trireme
