#pragma once
// What mpirun is started with: its command line, and the environment it and the ranks read.
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// The first in PATH. Errors: ConfigError if there is none.
std::filesystem::path find_mpirun(const LaunchEnvironment& environment);

/// Lines of an mpirun hostfile that name a host. Errors: MissingFileError; DataError if it is not a regular file, which mpirun could not read again; ConfigError
/// if there is none.
int count_hosts(const std::string& hosts_file);

/// Sets what Open MPI reads from the environment, where the user's own choice wins, kOutputVariable, kRanksVariable, and OMP_NUM_THREADS = cores / ranks of a
/// host. `one_host`: all ranks run here.
void prepare_environment(int ranks, int hosts, bool one_host);

/// `mpirun -n ranks /proc/self/exe arguments...`, with `-x` for each variable that ranks on other hosts need. Errors: ConfigError if there is no mpirun,
/// MissingFileError if this program's file is gone.
std::vector<std::string> mpirun_command(const LaunchEnvironment& environment, int ranks, const std::vector<std::string>& arguments,
                                        const std::optional<std::string>& hosts_file, bool one_host);

}  // namespace trireme
