#include "trainer/job/world.h"

#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <thread>

#include "kernels/core/check.h"
#include "parallel/comm/self.h"
#include "trainer/files/printable.h"
#include "trainer/job/launcher.h"
#include "trainer/resilience/watch.h"

namespace trireme {
namespace {

/// With more ranks than cores, waiting ranks must yield, or every message costs a time slice. mpirun configures Open MPI accordingly, srun does not.
void yield_where_srun_oversubscribes(const LaunchEnvironment& environment) {
  if (environment.first_node_tasks > static_cast<int>(std::thread::hardware_concurrency())) ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

}  // namespace

std::unique_ptr<Communicator> World::communicator() const {
  if (mpi_) return mpi_->world();
  return std::make_unique<SelfCommunicator>("world");
}

void World::fail(const std::exception& error) const {
  std::cerr << concat("rank ", mpi_->rank(), ": ", printable(error), "\n");  // one write: messages of ranks that fail together must not interleave
  static int code = 0;
  code = static_cast<int>(exit_code_of(error));
  std::atexit([] { ::_exit(code); });  // MPI_Abort may call exit(); handlers run in reverse order, so this one is the first
  mpi_->abort(code);
}

RankPlace single_process_place(const LaunchEnvironment& environment) { return {.threads = environment.omp_threads.value_or(0)}; }

World make_world(const LaunchEnvironment& environment) {
  World world;
  world.place_ = single_process_place(environment);
  if (!environment.is_rank()) return world;
  die_with_parent();
  yield_where_srun_oversubscribes(environment);
  world.mpi_ = std::make_unique<MpiEnvironment>();
  world.place_.local_rank = world.mpi_->local_rank();
  world.place_.local_size = world.mpi_->local_size();
  world.place_.host_ranks = world.mpi_->host_ranks();
  try {
    check_srun_tasks(environment, world.mpi_->size());
    announce_start(environment, world.mpi_->rank(), world.mpi_->size());
  } catch (const std::exception& error) {
    world.fail(error);
  }
  return world;
}

void check_srun_tasks(const LaunchEnvironment& environment, int world_size) {
  const bool by_mpirun = environment.starter == LaunchEnvironment::Starter::kMpirun;
  if (by_mpirun || environment.step_tasks.value_or(1) <= 1 || world_size > 1) return;
  throw ConfigError(
      concat("Slurm started ", *environment.step_tasks, " tasks, but MPI reports a world size of ", world_size, ": use srun --mpi=pmix"));
}

}  // namespace trireme
