#pragma once
// Starting the ranks of a run from one command, starting them again when they fail, and stopping them on request.
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "trainer/job/launch_environment.h"

namespace trireme {

/// How a failed job goes on.
struct Continuation {
  std::vector<std::string> arguments;
  int64_t saved = 0;                 ///< step of the checkpoint it starts from; 0: none of this run's
  std::string from;                  ///< the same in words
  int64_t done = 0;                  ///< the last step the failed job has finished; 0 before the first
  std::string no_retry_reason = {};  ///< why another try would come to the same end; empty: it may come to another
};

struct LaunchOptions {
  std::optional<std::string> hosts_file = {};  ///< an mpirun hostfile; without one all ranks run here, or in the Slurm allocation
  /// Set: every rank makes a Watch, and a hub here finds those that die, hang, or give no sign of life for so long.
  std::optional<double> silence_seconds = {};
  /// What ranks print is a log that may lose lines: the job goes on where nobody reads it. Else it is a text that is kept until it is read; where it cannot be
  /// written the job ends.
  bool output_is_log = false;
  bool resumable = true;  ///< the command may be given again after a stop; else, as for a benchmark, an early stop is a failure
  int64_t restarts = 0;   ///< times a failed job is started again, as RestartPolicy decides
  std::function<Continuation()> continuation = {};  ///< asked after each failure, if there are restarts
  bool oversubscribe = false;                       ///< as many ranks of a host as asked for, whatever check_ranks_of_host() says
};

/// Runs `mpirun -n ranks /proc/self/exe arguments...` and returns the exit code of the ranks (the first that is not 0). Works as root, with more ranks
/// than cores, and stays mpirun's parent:
///   - a request to stop reaches the ranks as SIGUSR1. Before they have called announce_ready() it ends the job at once instead, for there is
///     nothing to save; so does a second request (StopRequest);
///   - mpirun itself takes neither SIGTERM nor SIGINT: sent to all processes of a job, they would make it kill the ranks that are about to save;
///   - what mpirun says about a rank's exit code is dropped, unless the code is none of ours (a crash) and no hub knows better;
///   - a job that ends well without one rank's announce_start() has failed: what is called mpirun is none;
///   - a dead or hung rank is named on standard error, and all ranks go;
///   - if this process dies, mpirun and its ranks go within seconds; if mpirun hangs after the last rank, it is killed.
/// A job fails with ExitCode::kInternal; any other code is an answer, and is not tried again, nor is what the continuation calls no_retry_reason. A request to
/// stop between two tries or before the ranks were ready: kRequeue.
/// OMP_NUM_THREADS, if unset, is cores / ranks. Errors: ConfigError if there is no mpirun, or a host would have more ranks or open files than it can bear,
/// MissingFileError if there is no hosts file, or no longer this program's own, IoError, also for a text that cannot be written; InternalError if this process itself was started by launch().
int launch(const LaunchEnvironment& environment, int ranks, const std::vector<std::string>& arguments, const LaunchOptions& options = {});

/// Called by each rank of launch() as soon as MPI has told its rank and the world's size: the launcher's proof that mpirun has started a world of ranks. No
/// effect under another launcher. Errors: InternalError where the world has not as many ranks as launch() was to start.
void announce_start(const LaunchEnvironment& environment, int rank, int size);

/// To be called by rank 0 once every rank has its StopRequest: from now on a signal to the launcher is passed on. No effect under another launcher.
void announce_ready(const LaunchEnvironment& environment);

/// Whether the person looks at a terminal. mpirun gives its ranks a pseudo-terminal whatever its own output is, so under launch() the launcher knows.
bool standard_output_is_terminal(const LaunchEnvironment& environment);

}  // namespace trireme
