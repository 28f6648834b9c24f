#pragma once
// Starts the ranks of a run from one command, restarts them after a failure, and stops them on request.
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/crypto/aead.h"
#include "trainer/job/launch_environment.h"

namespace trireme {

/// How to restart a failed job.
struct Continuation {
  std::vector<std::string> arguments;
  int64_t saved = 0;                 ///< step of the checkpoint to resume from; 0: the run has none
  std::string from;                  ///< the same as text
  int64_t done = 0;                  ///< the last step that the failed job completed; 0: none
  std::string no_retry_reason = {};  ///< why a retry would fail in the same way; empty: retry
};

struct LaunchOptions {
  std::optional<std::string> hosts_file =
      {};  ///< an mpirun hostfile; without it and allocation_hosts all ranks run on this host, or where mpirun finds that Slurm has a place
  /// Returns the hosts of the allocation as a hostfile; may throw. Set: the launcher chooses from them, as from a hosts file.
  std::function<std::string()> allocation_hosts = {};
  /// If set, every rank creates a Watch, and a hub in the launcher detects ranks that die, hang, or are silent for this many seconds.
  std::optional<double> silence_seconds = {};
  std::shared_ptr<const crypto::Key> hub_key = {};          ///< HubOptions::key
  std::optional<std::filesystem::path> run_directory = {};  ///< whose logs get the verdict about ranks that died or hang
  /// True: the output of the ranks is a log, of which lines may be dropped, so an unread log never blocks the job. False: the output is kept until it
  /// is read; if it cannot be written, the job ends.
  bool output_is_log = false;
  bool resumable = true;                            ///< the command can be rerun after a stop; if not, as for a benchmark, an early stop is a failure
  bool has_findings = false;                        ///< ExitCode::kFindings of the ranks is a result
  int64_t restarts = 0;                             ///< maximum number of restarts of a failed job (RestartPolicy)
  std::vector<int> worlds = {};                     ///< numbers of ranks that a job may have, in descending order; empty: `ranks` alone
  int64_t host_strikes = 2;                         ///< JobHostsOptions::strikes
  double host_wait_seconds = 600;                   ///< JobHostsOptions::wait_seconds
  std::function<Continuation()> continuation = {};  ///< called before each job but the first
  bool oversubscribe = false;                       ///< skip check_ranks_of_host()
};

/// Runs `mpirun -n ranks /proc/self/exe arguments...` and returns the exit code of the ranks (the first that is not 0). Works as root and with more
/// ranks than cores, and remains mpirun's parent:
///   - a stop request is forwarded to the ranks as SIGUSR1. Before announce_ready() there is nothing to save, so it ends the job immediately instead,
///     as does a second request (StopRequest);
///   - a request for a checkpoint, SIGUSR2, is forwarded to the ranks;
///   - mpirun itself blocks SIGTERM and SIGINT: sent to all processes of a job, they would make it kill ranks that are about to save;
///   - mpirun's notice about a rank's exit code is dropped, unless the code is not an ExitCode (a crash) and there is no verdict of a hub;
///   - a job that exits with 0 without announce_start() of any rank has failed: the program found as mpirun is not Open MPI's;
///   - a dead or hung rank is named on standard error, and all ranks are ended;
///   - with a hub, SIGQUIT makes the ranks write the stacks of their threads to their logs, prints where each rank is to standard error, and the job
///     continues;
///   - if this process dies, mpirun and its ranks end within seconds; if mpirun hangs after the last rank has ended, it is killed.
/// With a hosts file, each job uses those of its hosts that JobHosts chooses. A job with several worlds runs with the largest that these hosts can take, and
/// continues with another when they change, which is not a restart.
/// Only ExitCode::kInternal is a failure that is retried, unless continuation() gives a no_retry_reason. A stop request between two attempts, or
/// before the ranks are ready, returns kRequeue. OMP_NUM_THREADS, if unset, becomes cores / ranks of a host.
/// Errors: ConfigError if mpirun is missing, or a host would exceed its limits on ranks or open files; MissingFileError if the hosts file or this
/// program's own file is missing; IoError, also for output that cannot be written; InternalError if this process itself was started by launch().
int launch(const LaunchEnvironment& environment, int ranks, const std::vector<std::string>& arguments, const LaunchOptions& options = {});

/// Called by each rank of launch() after MPI initialisation; confirms to the launcher that mpirun has started ranks. No effect under other launchers.
/// Errors: InternalError if the world size differs from the number of ranks that launch() requested.
void announce_start(const LaunchEnvironment& environment, int rank, int size);

/// Called by rank 0 once every rank has its StopRequest: from then on the launcher forwards signals. No effect under other launchers.
void announce_ready(const LaunchEnvironment& environment);

/// True if the user reads standard output on a terminal. Under launch() the launcher decides, because mpirun gives its ranks a pseudo-terminal in any
/// case.
bool standard_output_is_terminal(const LaunchEnvironment& environment);

/// True if the user reads standard error there too. mpirun forwards the two streams of a rank in any order.
bool both_outputs_are_terminals(const LaunchEnvironment& environment);

}  // namespace trireme
