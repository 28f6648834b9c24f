#pragma once
// Joins this process to the world of ranks that it was started in.
#include <exception>
#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/mpi.h"
#include "trainer/job/launch_environment.h"
#include "trainer/machine/machine.h"

namespace trireme {

/// The ranks of the job that this process belongs to. Uses MPI if mpirun or srun started this process; else the world has one rank and no transport.
/// Owned by the main thread; must outlive its communicators. If destroyed during stack unwinding it ends every rank, because the others would wait
/// for this one forever.
class World {
 public:
  /// A new communicator of all ranks. Collective.
  std::unique_ptr<Communicator> communicator() const;
  const RankPlace& place() const { return place_; }
  /// True if there may be ranks in other processes, which fail() has to end.
  bool has_launcher() const { return mpi_ != nullptr; }
  /// For an error that the ranks have not agreed on; requires has_launcher(). Prints this rank and the error to standard error, and ends every rank
  /// with the error's exit code, or kInternal if it is not an Error. This process ends without the exit handlers of libraries registered before: that
  /// of CUDA could wait for a GPU that waits for another rank.
  [[noreturn]] void fail(const std::exception& error) const;

 private:
  friend World make_world(const LaunchEnvironment& environment);
  std::unique_ptr<MpiEnvironment> mpi_;
  RankPlace place_;
};

/// The place of a process without other ranks.
RankPlace single_process_place(const LaunchEnvironment& environment);

/// Joins the world that this process was started in. Call once per process. From then on a rank dies with its parent. If the world size is not the
/// one that the launcher requested (check_srun_tasks(), announce_start()), World::fail ends the job.
World make_world(const LaunchEnvironment& environment);

/// Detects an srun whose PMI the MPI library does not support: it starts N worlds of size 1, which would all train into the same directory. Errors:
/// ConfigError.
void check_srun_tasks(const LaunchEnvironment& environment, int world_size);

}  // namespace trireme
