#pragma once
// Environment variables set by launchers (mpirun, srun, launch()) and the user. No other file of the trainer reads the environment; other code gets
// values from this struct.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>

namespace trireme {

/// Variables that launch() sets for its ranks.
/// What the user reads on a terminal: "terminal" the launcher's standard output and standard error, "terminal-output" only the former, "log" neither.
inline constexpr const char* kOutputVariable = "TRIREME_LAUNCHER_OUTPUT";
inline constexpr const char* kRanksVariable = "TRIREME_LAUNCHER_RANKS";  ///< number of ranks that launch() starts
inline constexpr const char* kHubVariable = "TRIREME_HUB";               ///< Hub::address of the hub in the launcher process
inline constexpr const char* kTimesVariable = "TRIREME_LAUNCH_TIMES";    ///< text_of() the launcher's LaunchTimes

inline constexpr const char* kSpinningVariable = "TRIREME_SPINNING";  ///< set by limit_spinning for the second start of this program

/// Variables that set the directories of Open MPI and other libraries.
inline constexpr const char* kSegmentsVariable = "OMPI_MCA_btl_vader_backing_directory";  ///< shared-memory segments of the ranks of a host
inline constexpr const char* kSessionVariable = "OMPI_MCA_orte_tmpdir_base";              ///< session directories of all hosts
inline constexpr const char* kPrteSessionVariable = "PRTE_MCA_prte_tmpdir_base";          ///< the same in Open MPI 5
inline constexpr const char* kTemporaryVariable = "TMPDIR";

/// When a launcher began, and when it began the job that is running: it may have restarted it.
struct LaunchTimes {
  std::chrono::system_clock::time_point launcher = std::chrono::system_clock::now();
  std::chrono::system_clock::time_point job = launcher;
};
/// Milliseconds since 1970 of both.
std::string text_of(const LaunchTimes& times);

struct LaunchEnvironment {
  enum class Starter : uint8_t {
    kNone,    ///< not started as a rank, e.g. from a shell, also inside salloc, sbatch or `srun --pty`
    kMpirun,  ///< Open MPI's mpirun, also inside a Slurm allocation
    kPmi,     ///< srun, or another launcher that uses PMI or PMIx
  };
  Starter starter = Starter::kNone;

  // From launch().
  std::optional<int> launched_ranks = {};         ///< kRanksVariable
  std::optional<std::string> launch_output = {};  ///< kOutputVariable
  std::optional<std::string> hub_address = {};    ///< kHubVariable
  LaunchTimes times = {};                         ///< kTimesVariable; without it, when this process read its environment

  // From Slurm.
  std::optional<std::string> slurm_job = {};    ///< job id of the allocation
  int slurm_restarts = 0;                       ///< how often the job has been requeued
  std::optional<int> allocated_nodes = {};      ///< nodes of the allocation
  std::optional<std::string> slurm_nodes = {};  ///< their names, as Slurm abbreviates them: "node[1-4]"
  std::optional<std::string> slurm_slots = {};  ///< tasks of each of them, else CPUs: "2(x3),1"
  std::optional<int> step_tasks = {};           ///< tasks of the srun step
  int first_node_tasks = 0;                     ///< tasks on the first node of the step; 0 outside a step

  // From torchrun and its relatives, which start no ranks of MPI.
  std::optional<int> torch_world = {};  ///< WORLD_SIZE, beside RANK and MASTER_ADDR; nullopt: not all are set
  bool torch_elastic = false;           ///< torchrun itself has started this process

  // What shows that variables of mpirun are those of a job that runs: its ranks have a server.
  bool has_pmix_server = false;  ///< PMIX_SERVER_URI*, of Open MPI's ranks

  // From PBS.
  std::optional<std::string> pbs_node_file = {};  ///< a line with a host name for each slot of the job

  // From the user or the launcher.
  std::optional<int> omp_threads = {};                       ///< OMP_NUM_THREADS; 0 if that is not a number
  std::optional<std::string> temporary_directory = {};       ///< TMPDIR
  bool spinning_is_limited = false;                          ///< kSpinningVariable is set
  bool spinning_is_chosen = false;                           ///< OMP_WAIT_POLICY or GOMP_SPINCOUNT is set, and not by limit_spinning
  bool segments_are_placed = false;                          ///< kSegmentsVariable is set
  bool session_is_placed = false;                            ///< kSessionVariable, or a variant of it, is set
  std::string search_path = "/usr/local/bin:/usr/bin:/bin";  ///< PATH

  /// True in a rank started by mpirun or an srun step.
  bool is_rank() const { return starter != Starter::kNone; }
  /// True in a rank started by launch().
  bool is_rank_of_launch() const { return is_rank() && launch_output.has_value(); }
};

/// The first executable file with one of these names in the directories of PATH; within a directory the names count in order.
std::optional<std::filesystem::path> find_program(const LaunchEnvironment& environment, std::initializer_list<const char*> names);

/// True if this process has an environment variable of this name, whoever has set it.
bool is_variable_set(const char* name);

/// Refuses what no rank and no launcher can work with. Errors: ConfigError if this is one of several processes of torchrun, or has the variables of a rank of
/// mpirun without having been started by it. A note on standard error if variables of torchrun are set that have no effect.
void check_starter(const LaunchEnvironment& environment);

/// Reads the environment. Call once per process, before launch() adds variables for the ranks.
LaunchEnvironment read_launch_environment();

}  // namespace trireme
