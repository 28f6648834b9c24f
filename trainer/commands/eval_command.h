#pragma once
#include <CLI/CLI.hpp>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `eval CONFIG --checkpoint DIR [--set key.path=value]... [--json]`: evaluates a checkpoint of any layout, or a Hugging Face folder, on the
/// validation sets of CONFIG, on one rank. Sets `exit_code`; errors are thrown as trireme::Error.
void add_eval_command(CLI::App& app, const LaunchEnvironment& environment, int& exit_code);

}  // namespace trireme
