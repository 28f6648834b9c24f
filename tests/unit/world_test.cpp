// The launch environment, and the world that a process joins.
#include "trainer/job/world.h"

#include <cstdlib>
#include <map>

#include "kernels/core/check.h"
#include "tests/support/catch.h"
#include "trainer/job/launcher.h"
#include "trainer/job/omp_spinning.h"

using namespace trireme;

namespace {

using Starter = LaunchEnvironment::Starter;

/// read_launch_environment() with only these variables set.
LaunchEnvironment read_with(const std::map<std::string, std::string>& variables) {
  constexpr const char* kAll[] = {"OMPI_COMM_WORLD_SIZE",
                                  "PMIX_RANK",
                                  "PMI_RANK",
                                  "SLURM_PROCID",
                                  "SLURM_STEP_ID",
                                  "SLURM_PTY_PORT",
                                  "SLURM_JOB_NUM_NODES",
                                  "SLURM_STEP_NUM_TASKS",
                                  "SLURM_STEP_TASKS_PER_NODE",
                                  "OMP_NUM_THREADS",
                                  "OMP_WAIT_POLICY",
                                  "GOMP_SPINCOUNT",
                                  kSpinningVariable,
                                  "TMPDIR",
                                  "PATH",
                                  "OMPI_MCA_btl_vader_backing_directory",
                                  "OMPI_MCA_orte_tmpdir_base",
                                  "PRTE_MCA_prte_tmpdir_base",
                                  "OMPI_MCA_orte_local_tmpdir_base",
                                  "OMPI_MCA_orte_remote_tmpdir_base",
                                  kOutputVariable,
                                  kRanksVariable,
                                  kHubVariable};
  std::map<std::string, std::string> before;
  for (const char* name : kAll) {
    if (const char* value = std::getenv(name)) before[name] = value;
    ::unsetenv(name);
  }
  for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
  const LaunchEnvironment environment = read_launch_environment();
  for (const auto& [name, value] : variables) ::unsetenv(name.c_str());
  for (const auto& [name, value] : before) ::setenv(name.c_str(), value.c_str(), 1);
  return environment;
}

}  // namespace

TEST_CASE("launch environment: a process without a launcher") {
  const LaunchEnvironment none = read_with({});
  CHECK(none.starter == Starter::kNone);
  CHECK_FALSE((none.is_rank() || none.is_rank_of_launch()));
  CHECK_FALSE((none.launched_ranks || none.launch_output || none.hub_address || none.allocated_nodes || none.step_tasks || none.omp_threads));
  CHECK_FALSE((none.temporary_directory || none.segments_are_placed || none.session_is_placed));
  CHECK(none.search_path == "/usr/local/bin:/usr/bin:/bin");
}

TEST_CASE("launch environment: the launcher of a rank is recognised") {
  CHECK(read_with({{"OMPI_COMM_WORLD_SIZE", "4"}}).starter == Starter::kMpirun);
  CHECK(read_with({{"OMPI_COMM_WORLD_SIZE", "4"}, {"SLURM_PTY_PORT", "40001"}}).starter == Starter::kMpirun);  // mpirun within `srun --pty`
  CHECK(read_with({{"PMIX_RANK", "0"}}).starter == Starter::kPmi);
  CHECK(read_with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "7"}}).starter == Starter::kPmi);
  CHECK(read_with({{"SLURM_PROCID", "0"}, {"SLURM_STEP_ID", "4294967291"}}).starter == Starter::kNone);
  const LaunchEnvironment launched =
      read_with({{"OMPI_COMM_WORLD_SIZE", "4"}, {kRanksVariable, "4"}, {kOutputVariable, "terminal"}, {kHubVariable, "x@y"}});
  CHECK(launched.is_rank_of_launch());
  CHECK(launched.launched_ranks == 4);
  CHECK(launched.hub_address == "x@y");
  CHECK(standard_output_is_terminal(launched));
  CHECK(both_outputs_are_terminals(launched));
  const LaunchEnvironment errors_in_a_file = read_with({{"OMPI_COMM_WORLD_SIZE", "4"}, {kOutputVariable, "terminal-output"}});
  CHECK(standard_output_is_terminal(errors_in_a_file));
  CHECK_FALSE(both_outputs_are_terminals(errors_in_a_file));
  CHECK_FALSE(read_with({{kOutputVariable, "log"}}).is_rank_of_launch());  // started by launch(), but not a rank
}

TEST_CASE("launch environment: numbers are read in the formats of Slurm and OpenMP") {
  const LaunchEnvironment step =
      read_with({{"SLURM_JOB_NUM_NODES", "3"}, {"SLURM_STEP_NUM_TASKS", "20"}, {"SLURM_STEP_TASKS_PER_NODE", "8(x2),4"}, {"OMP_NUM_THREADS", "6,2"}});
  CHECK(step.allocated_nodes == 3);
  CHECK(step.step_tasks == 20);
  CHECK(step.first_node_tasks == 8);
  CHECK(step.omp_threads == 6);
  CHECK(read_with({{"OMP_NUM_THREADS", "many"}}).omp_threads == 0);
}

TEST_CASE("launch environment: directories set by the user are recognised") {
  CHECK(read_with({{"TMPDIR", "/scratch"}}).temporary_directory == "/scratch");
  CHECK(read_with({{kSegmentsVariable, "/dev/shm/mine"}}).segments_are_placed);
  for (const char* session :
       {"OMPI_MCA_orte_tmpdir_base", "PRTE_MCA_prte_tmpdir_base", "OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base"})
    CHECK(read_with({{session, "/mine"}}).session_is_placed);
}

TEST_CASE("launch environment: how waiting threads spin is the user's choice, unless the program has set it for itself") {
  CHECK_FALSE(read_with({}).spinning_is_chosen);
  CHECK(read_with({{"OMP_WAIT_POLICY", "active"}}).spinning_is_chosen);
  CHECK(read_with({{"GOMP_SPINCOUNT", "0"}}).spinning_is_chosen);
  const LaunchEnvironment second = read_with({{"GOMP_SPINCOUNT", kSpinCount}, {kSpinningVariable, "limited"}});
  CHECK(second.spinning_is_limited);
  CHECK_FALSE(second.spinning_is_chosen);
}

TEST_CASE("world: a process without a launcher is a world of one rank, with the configured threads") {
  const World world = make_world({.omp_threads = 3});
  CHECK_FALSE(world.has_launcher());
  CHECK(world.communicator()->size() == 1);
  CHECK((world.place().local_rank == 0 && world.place().local_size == 1));
  CHECK(world.place().threads == 3);
  CHECK(single_process_place({}).threads == 0);
}

TEST_CASE("world: N worlds of size 1 instead of one world of size N are refused under srun") {
  const LaunchEnvironment step{.starter = Starter::kPmi, .step_tasks = 4};
  try {
    check_srun_tasks(step, 1);
    FAIL("no error");
  } catch (const ConfigError& error) {
    CHECK(std::string(error.what()) == "Slurm started 4 tasks, but MPI reports a world size of 1: use srun --mpi=pmix");
  }
  CHECK_NOTHROW(check_srun_tasks(step, 4));
  CHECK_NOTHROW(check_srun_tasks({.starter = Starter::kPmi, .step_tasks = 1}, 1));
  CHECK_NOTHROW(check_srun_tasks({.starter = Starter::kPmi}, 1));
  // Inside an allocation mpirun counts the ranks, not Slurm.
  CHECK_NOTHROW(check_srun_tasks({.starter = Starter::kMpirun, .step_tasks = 4}, 1));
}

TEST_CASE("launch environment: processes of torchrun and leftovers of mpirun are refused, lone variables noted") {
  LaunchEnvironment shell;
  CHECK_NOTHROW(check_starter(shell));
  LaunchEnvironment torch = read_with({{"RANK", "1"}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}, {"TORCHELASTIC_RUN_ID", "7"}});
  CHECK(torch.torch_world == 2);
  CHECK_THROWS_WITH(check_starter(torch), Catch::Matchers::StartsWith("RANK, LOCAL_RANK, WORLD_SIZE=2 and MASTER_ADDR are set, as by torchrun"));
  torch.torch_elastic = false;
  CHECK_NOTHROW(check_starter(torch));  // a note
  torch.torch_world = 1;
  torch.torch_elastic = true;
  CHECK_NOTHROW(check_starter(torch));
  LaunchEnvironment rank = read_with({{"OMPI_COMM_WORLD_SIZE", "2"}, {"RANK", "1"}, {"LOCAL_RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "a"}});
  CHECK_THROWS_WITH(check_starter(rank), Catch::Matchers::Contains("mpirun has not started this process"));
  CHECK_NOTHROW(check_starter(read_with({{"OMPI_COMM_WORLD_SIZE", "2"}, {"PMIX_SERVER_URI21", "x"}, {"TORCHELASTIC_RUN_ID", "7"}})));
  CHECK_FALSE(read_with({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).torch_world);
}
