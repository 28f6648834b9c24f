#pragma once
// Starting the ranks of a run from one command, and stopping them on request.
#include <optional>
#include <string>
#include <vector>

namespace trireme {

/// True in a rank that mpirun or an srun step started. A plain shell inside salloc, sbatch or `srun --pty` is not one.
bool under_launcher();

/// Runs `mpirun -n ranks /proc/self/exe arguments...` and returns the exit code of the ranks (the first that is not 0). Works as root, with more ranks
/// than cores, and stays mpirun's parent:
///   - SIGTERM, SIGINT and SIGUSR1 reach the ranks as SIGUSR1, once they have called announce_ready() (a second SIGINT ends the job at once);
///     SIGTERM itself would make mpirun kill them;
///   - what mpirun says about a rank's exit code is dropped, unless the code is none of ours (a crash): then it is all there is to tell;
///   - if this process dies, mpirun and its ranks go within seconds; if mpirun hangs after the last rank, it is killed.
/// `hosts_file`: an mpirun hostfile; without one all ranks run here (or in the Slurm allocation). OMP_NUM_THREADS, if unset, is cores / ranks.
/// Errors: ConfigError if there is no mpirun, MissingFileError if there is no hosts file, IoError.
int launch(int ranks, const std::vector<std::string>& arguments, const std::optional<std::string>& hosts_file);

/// Told by rank 0 once every rank has its StopRequest: from now on a signal to the launcher is passed on. No effect under another launcher.
void announce_ready();

/// Whether the person looks at a terminal. mpirun gives its ranks a pseudo-terminal whatever its own output is, so under launch() the launcher knows.
bool standard_output_is_terminal();

/// Turns SIGTERM, SIGINT and SIGUSR1 into a flag, from its construction to its destruction. At most one at a time.
class StopRequest {
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  /// On this rank: the ranks must agree (a reduction over the world) before they act on it.
  bool requested() const;
};

}  // namespace trireme
