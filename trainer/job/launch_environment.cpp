#include "trainer/job/launch_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string_view>

#include "kernels/core/check.h"

namespace trireme {
namespace {

using Starter = LaunchEnvironment::Starter;

std::optional<std::string> text_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
}

/// The leading number of the value, e.g. 8 of "8(x2),4"; 0 if there is none.
std::optional<int> number_of(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? std::optional<int>(std::atoi(value)) : std::nullopt;
}

/// Those of this process if the text is not text_of() any.
LaunchTimes times_of(const std::optional<std::string>& text) {
  LaunchTimes times;
  long long launcher = 0, job = 0;
  if (!text || std::sscanf(text->c_str(), "%lld %lld", &launcher, &job) != 2) return times;
  const auto point = [](long long milliseconds) { return std::chrono::system_clock::time_point(std::chrono::milliseconds(milliseconds)); };
  return {point(launcher), point(job)};
}

/// Batch scripts and salloc shells have a step id too, but in a reserved range at the end.
bool is_task_of_step() {
  constexpr unsigned long kFirstReservedStep = 0xfffffff0UL;
  const std::optional<std::string> step = text_of("SLURM_STEP_ID");
  return step && is_variable_set("SLURM_PROCID") && std::strtoul(step->c_str(), nullptr, 10) < kFirstReservedStep;
}

bool has_prefix(std::string_view prefix) {
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string_view(*entry).starts_with(prefix)) return true;
  return false;
}

Starter find_starter() {
  if (is_variable_set("OMPI_COMM_WORLD_SIZE")) return Starter::kMpirun;
  if (is_variable_set("SLURM_PTY_PORT")) return Starter::kNone;  // a shell that `srun --pty` opened
  return is_variable_set("PMIX_RANK") || is_variable_set("PMI_RANK") || is_task_of_step() ? Starter::kPmi : Starter::kNone;
}

}  // namespace

std::string text_of(const LaunchTimes& times) {
  const auto milliseconds = [](std::chrono::system_clock::time_point time) {
    return std::to_string(std::chrono::duration_cast<std::chrono::milliseconds>(time.time_since_epoch()).count());
  };
  return milliseconds(times.launcher) + " " + milliseconds(times.job);
}

std::optional<std::filesystem::path> find_program(const LaunchEnvironment& environment, std::initializer_list<const char*> names) {
  std::istringstream directories(environment.search_path);
  for (std::string directory; std::getline(directories, directory, ':');)
    for (const char* name : names) {
      const std::filesystem::path candidate = std::filesystem::path(directory.empty() ? "." : directory) / name;
      if (::access(candidate.c_str(), X_OK) == 0) return candidate;
    }
  return std::nullopt;
}

void check_starter(const LaunchEnvironment& environment) {
  if (environment.starter == Starter::kMpirun && !environment.has_pmix_server)
    throw ConfigError(
        "OMPI_COMM_WORLD_SIZE is set, as in a rank of mpirun, but PMIX_SERVER_URI is not: mpirun has not started this process. If the variables are "
        "left from another job, start with: env -u OMPI_COMM_WORLD_SIZE trireme ...");
  if (environment.is_rank() || environment.torch_world.value_or(1) <= 1) return;
  const std::string set = concat("RANK, LOCAL_RANK, WORLD_SIZE=", *environment.torch_world, " and MASTER_ADDR are set, as by torchrun");
  constexpr const char* kAdvice =
      "trireme train starts its ranks itself, with mpirun: parallel.tensor x pipeline x data of them, and --hosts FILE on several hosts";
  if (environment.torch_elastic)
    throw ConfigError(concat(set, ", whose processes would each train alone; ", kAdvice, ". Start it once, without torchrun"));
  std::cerr << concat("note: ", set, ", and have no effect: ", kAdvice, "\n");
}

bool is_variable_set(const char* name) { return std::getenv(name) != nullptr; }

LaunchEnvironment read_launch_environment() {
  constexpr std::array kSessionPlaces{kSessionVariable, kPrteSessionVariable, "OMPI_MCA_orte_local_tmpdir_base", "OMPI_MCA_orte_remote_tmpdir_base"};
  LaunchEnvironment environment;
  environment.starter = find_starter();
  environment.launched_ranks = number_of(kRanksVariable);
  environment.launch_output = text_of(kOutputVariable);
  environment.hub_address = text_of(kHubVariable);
  environment.times = times_of(text_of(kTimesVariable));
  environment.slurm_job = text_of("SLURM_JOB_ID");
  environment.slurm_nodes = text_of("SLURM_JOB_NODELIST");
  environment.slurm_slots = is_variable_set("SLURM_TASKS_PER_NODE") ? text_of("SLURM_TASKS_PER_NODE") : text_of("SLURM_JOB_CPUS_PER_NODE");
  environment.slurm_restarts = number_of("SLURM_RESTART_COUNT").value_or(0);
  environment.allocated_nodes = number_of("SLURM_JOB_NUM_NODES");
  environment.step_tasks = number_of("SLURM_STEP_NUM_TASKS");
  environment.first_node_tasks = number_of("SLURM_STEP_TASKS_PER_NODE").value_or(0);
  if (is_variable_set("RANK") && is_variable_set("LOCAL_RANK") && is_variable_set("MASTER_ADDR")) environment.torch_world = number_of("WORLD_SIZE");
  environment.torch_elastic = is_variable_set("TORCHELASTIC_RUN_ID");
  environment.has_pmix_server = has_prefix("PMIX_SERVER_URI") || is_variable_set("PMI_FD");
  environment.pbs_node_file = text_of("PBS_NODEFILE");
  environment.omp_threads = number_of("OMP_NUM_THREADS");
  environment.spinning_is_limited = is_variable_set(kSpinningVariable);
  environment.spinning_is_chosen = !environment.spinning_is_limited && (is_variable_set("OMP_WAIT_POLICY") || is_variable_set("GOMP_SPINCOUNT"));
  environment.temporary_directory = text_of(kTemporaryVariable);
  environment.segments_are_placed = is_variable_set(kSegmentsVariable);
  environment.session_is_placed = std::any_of(kSessionPlaces.begin(), kSessionPlaces.end(), is_variable_set);
  environment.search_path = text_of("PATH").value_or(environment.search_path);
  return environment;
}

}  // namespace trireme
