#pragma once
#include <string>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// `trireme bench machine`: measures this machine's CPU, `seconds` per measurement, and writes a cluster file to `file`, or to standard output if
/// that is empty. Returns the exit code. Errors: ConfigError under mpirun or srun; IoError, before measuring, if `file` cannot be written; Error with kInternal if
/// other processes keep the cores busy, unless `allow_busy`, which writes that into the file instead.
int bench_machine(const LaunchEnvironment& environment, double seconds, const std::string& file, bool allow_busy);

}  // namespace trireme
