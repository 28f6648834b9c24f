#pragma once
// From a process that somebody has started to a rank in a world of ranks.
#include <exception>
#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi.h"
#include "trainer/job/launch_environment.h"
#include "trainer/loop/machine.h"

namespace trireme {

/// The ranks of a job, of which this process is one, and what carries their messages: MPI where mpirun or srun started this process, else nothing. To be kept
/// for longer than its communicators, by the main thread. Left by an exception it ends every rank, as the other ranks would wait for this one for ever.
class World {
 public:
  /// All ranks, over a communicator of its own. Collective.
  std::unique_ptr<Communicator> communicator() const;
  const RankPlace& place() const { return place_; }
  /// Whether ranks may live in other processes, which fail() has to end.
  bool has_launcher() const { return mpi_ != nullptr; }
  /// For an error that the ranks have not agreed on, where has_launcher(): names this rank and the error on standard error, and ends every rank with the
  /// error's code, kInternal for one that is no Error.
  [[noreturn]] void fail(const std::exception& error) const;

 private:
  friend World make_world(const LaunchEnvironment& environment);
  std::unique_ptr<MpiEnvironment> mpi_;
  RankPlace place_;
};

/// Where a process that talks to no other one computes.
RankPlace lone_place(const LaunchEnvironment& environment);

/// Joins the world this process was started in; once in a process. A rank dies with its parent from here on. Where the world is not the one that the launcher
/// was to start, World::fail ends the job: check_srun_tasks(), announce_start().
World make_world(const LaunchEnvironment& environment);

/// srun with a PMI that MPI does not speak starts N worlds of one, each of which would train alone into the same directory. Errors: ConfigError.
void check_srun_tasks(const LaunchEnvironment& environment, int world_size);

}  // namespace trireme
