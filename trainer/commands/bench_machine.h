#pragma once
#include <string>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `trireme bench machine`: measures this machine's CPU, `seconds` for each figure, and writes a cluster file to `file`, to standard output where
/// that is empty. Returns the exit code. Errors: ConfigError under a launcher; IoError where `file` cannot be written, before anything is measured.
int bench_machine(const LaunchEnvironment& environment, double seconds, const std::string& file);

}  // namespace trireme
