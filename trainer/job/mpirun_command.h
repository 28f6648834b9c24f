#pragma once
// The command line of mpirun, and the environment of mpirun and the ranks.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// The kinds of mpirun, which differ in name and options.
enum class MpirunKind : uint8_t {
  kOpenMpi,
  kHydra,  ///< of MPICH and its relatives: Intel MPI, MVAPICH
};
/// The kind that starts ranks of an MPI library. `library`: mpi_library_version().
MpirunKind mpirun_kind(const std::string& library);
/// The kind for the library of this program.
MpirunKind mpirun_kind();

/// The first mpirun in PATH; where Debian has several in a directory, the one of this kind. Errors: ConfigError if there is none.
std::filesystem::path find_mpirun(const LaunchEnvironment& environment, MpirunKind kind = mpirun_kind());

/// An mpirun hostfile, which lists at least one host. Errors: those of count_hosts.
std::string hosts_text(const std::string& hosts_file);

/// Errors: those of count_hosts(); ConfigError naming the line of a host that has no address.
void check_addresses(const std::string& hosts_file);

/// The number of hosts in an mpirun hostfile. Errors: MissingFileError; DataError if it is not a regular file, because mpirun must read it again;
/// ConfigError if it lists no host, or naming a line that mpirun would refuse or misread.
int count_hosts(const std::string& hosts_file);

/// The environment of mpirun and the ranks: kOutputVariable, kRanksVariable, and defaults for the variables of Open MPI 4 and 5 and for OMP_NUM_THREADS (cores
/// / ranks of a host). Variables that the user has set are kept.
class LaunchVariables {
 public:
  /// For a job of `ranks` ranks. `host_ranks`: ranks of the host that has most; `one_host`: all ranks run on this host.
  void set(int ranks, int host_ranks, bool one_host);

 private:
  void set_default(const char* name, const std::string& value);
  std::set<std::string> ours_;  ///< variables that the last call has set, of which another number of ranks needs other values
};

/// `mpirun -n ranks /proc/self/exe arguments...`, with `-x` for each variable that ranks on other hosts need and Hydra passes on anyway. Errors:
/// ConfigError if there is no mpirun, MissingFileError if this program's file no longer exists.
std::vector<std::string> mpirun_command(const LaunchEnvironment& environment, int ranks, const std::vector<std::string>& arguments,
                                        const std::optional<std::string>& hosts_file, bool one_host, MpirunKind kind = mpirun_kind());

}  // namespace trireme
