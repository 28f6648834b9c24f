#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// Adds `config show|schema|explain|actions CONFIG [--set key.path=value]...` to `app`; `actions --lowered` too. The callbacks print to standard output, set `exit_code` to kOk
/// and let errors (check.h) pass to the caller of parse().
void add_config_command(CLI::App& app, int& exit_code);

}  // namespace trireme
