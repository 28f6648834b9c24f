#pragma once
#include <string>

#include "trainer/job/launch_environment.h"
#include "trainer/sweep/results.h"

namespace trireme::sweep {

/// Errors: ConfigError if sbatch is not in PATH.
void require_sbatch(const LaunchEnvironment& environment, const SweepFile& file);

/// A batch script for an array job, whose tasks run one point each by `trireme sweep FILE --point K`: those that are neither done nor failed, at most
/// `at_once` at a time. A task that Slurm stops at its time limit saves and requeues itself. Empty if no point is left to be run.
std::string array_script(const Results& results, int64_t at_once, const std::string& program);

}  // namespace trireme::sweep
