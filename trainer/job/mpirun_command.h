#pragma once
// The command line of mpirun, and the environment of mpirun and the ranks.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// The first mpirun in PATH. Errors: ConfigError if there is none.
std::filesystem::path find_mpirun(const LaunchEnvironment& environment);

/// The number of hosts in an mpirun hostfile. Errors: MissingFileError; DataError if it is not a regular file, because mpirun must read it again;
/// ConfigError if it lists no host.
int count_hosts(const std::string& hosts_file);

/// Sets kOutputVariable and kRanksVariable, and defaults for Open MPI's variables and OMP_NUM_THREADS (cores / ranks of a host); variables that the
/// user has set are kept. `one_host`: all ranks run on this host.
void prepare_environment(int ranks, int hosts, bool one_host);

/// `mpirun -n ranks /proc/self/exe arguments...`, with `-x` for each variable that ranks on other hosts need. Errors: ConfigError if there is no
/// mpirun, MissingFileError if this program's file no longer exists.
std::vector<std::string> mpirun_command(const LaunchEnvironment& environment, int ranks, const std::vector<std::string>& arguments,
                                        const std::optional<std::string>& hosts_file, bool one_host);

}  // namespace trireme
