#pragma once
// The hosts of a job that mpirun starts inside an allocation: of an elastic job in one of Slurm, which `sbatch --no-kill` keeps when it loses nodes, and of any
// job in one of PBS, which not every mpirun knows.
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme::submit {

/// The numbers of "2(x3),1", as Slurm writes them for the nodes of an allocation: {2, 2, 2, 1}. Errors: DataError.
std::vector<int> counts_of_nodes(const std::string& text);

/// An mpirun hostfile of the nodes in `in_service`, each with its number of slots. `counts` has a number for each of `nodes`. Errors: DataError if it has not.
std::string hosts_of_allocation(const std::vector<std::string>& nodes, const std::vector<int>& counts, const std::set<std::string>& in_service);

/// Asks Slurm. A node that is down, drained or does not answer is left out. The slots of a node are its tasks (sbatch --ntasks-per-node), else its CPUs. Errors:
/// those of run_program and DataError; IoError if Slurm's commands fail.
std::string allocation_hosts(const LaunchEnvironment& environment);

/// An mpirun hostfile from the text of $PBS_NODEFILE, which repeats the name of a host for each of its slots. Errors: DataError if a line is no host name.
std::string hosts_of_node_file(const std::string& text);

/// The hostfile of a PBS job on several hosts; nullopt outside PBS and on one host. Errors: those of read_text, which name the variable, and DataError.
std::optional<std::string> pbs_hosts(const LaunchEnvironment& environment);

}  // namespace trireme::submit
