#pragma once
#include <CLI/CLI.hpp>
#include <memory>
#include <utility>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `train CONFIG [--set key.path=value]... [--resume auto|never|DIR] [--max-steps N] [--restarts N] [--hosts FILE] [--trace-steps A:B]`.
/// `arguments`: the command line after the program's name, passed to started ranks. Sets `exit_code`; errors are thrown as trireme::Error.
void add_train_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& arguments, int& exit_code);

/// Declares the command and its options without an action. The second part owns what the options write to.
std::pair<CLI::App*, std::shared_ptr<void>> declare_train_command(CLI::App& app);

/// `join ADDRESS CONFIG [--set key.path=value]... [--restarts N] [--hosts FILE]`: trains as a member of a federation. Otherwise as above.
void add_join_command(CLI::App& app, const LaunchEnvironment& environment, const std::vector<std::string>& arguments, int& exit_code);

}  // namespace trireme
