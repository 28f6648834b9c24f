#include "trainer/commands/run_on_ranks.h"

#include <cstdlib>
#include <iostream>
#include <thread>

#include "parallel/comm/mpi.h"
#include "parallel/comm/self.h"
#include "trainer/files/printable.h"
#include "trainer/job/launcher.h"
#include "trainer/loop/agree.h"
#include "trainer/resilience/watch.h"

namespace trireme {
namespace {

using Body = std::function<ExitCode(std::unique_ptr<Communicator>, const RankPlace&)>;

ExitCode run_body(std::unique_ptr<Communicator> world, const RankPlace& place, const Body& body) {
  try {
    return body(std::move(world), place);
  } catch (const AgreedError& error) {
    if (error.is_reporter) std::cerr << printable(error) << std::endl;
    return error.code();
  }
}

/// More ranks than cores must yield while they wait, or each turn costs a time slice. mpirun tells Open MPI so, srun does not.
void yield_where_srun_oversubscribes() {
  const char* tasks = std::getenv("SLURM_STEP_TASKS_PER_NODE");  // "8", "8(x2),4"
  if (tasks != nullptr && std::atoi(tasks) > static_cast<int>(std::thread::hardware_concurrency())) ::setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0);
}

/// srun with a PMI that MPI does not speak starts N worlds of one, each of which would train alone into the same directory.
void check_slurm_world(const MpiEnvironment& mpi) {
  const char* tasks = std::getenv("SLURM_STEP_NUM_TASKS");
  const bool by_mpirun = std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr;  // inside an allocation mpirun counts the ranks, not Slurm
  if (by_mpirun || tasks == nullptr || std::atoi(tasks) <= 1 || mpi.size() > 1) return;
  throw ConfigError(concat("Slurm started ", tasks, " tasks, but MPI sees a world of ", mpi.size(), ": use srun --mpi=pmix"));
}

}  // namespace

ExitCode run_on_ranks(const Body& body) {
  if (!under_launcher()) {
    return run_body(std::make_unique<SelfCommunicator>("world"), {}, body);
  }
  die_with_parent();
  yield_where_srun_oversubscribes();
  MpiEnvironment mpi;
  const auto report = [&](const std::exception& error) {
    std::cerr << concat("rank ", mpi.rank(), ": ", printable(error), "\n");  // one write: ranks that fail together must not mix their words
  };
  try {
    check_slurm_world(mpi);
    announce_start(mpi.rank(), mpi.size());
    return run_body(mpi.world(), {mpi.local_rank(), mpi.local_size()}, body);
  } catch (const Error& error) {
    report(error);
    mpi.abort(static_cast<int>(error.code()));
  } catch (const std::exception& error) {
    report(error);
    mpi.abort(static_cast<int>(ExitCode::kInternal));
  }
}

void add_oversubscribe_flag(CLI::App& command, bool& oversubscribe) {
  command.add_flag("--oversubscribe", oversubscribe, "Start the ranks even where a host gets more than 64, and more than 16 for each of its cores");
}

}  // namespace trireme
