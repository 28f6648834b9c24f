#pragma once
#include <CLI/CLI.hpp>

namespace trireme {

/// Adds `config show|schema|explain|actions CONFIG [--set key.path=value]...` and `config actions --lowered` to `app`. The callbacks print to
/// standard output and set `exit_code` to kOk; errors (check.h) propagate to the caller of parse().
void add_config_command(CLI::App& app, int& exit_code);

}  // namespace trireme
