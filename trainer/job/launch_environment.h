#pragma once
// What the program that started this process says in environment variables. No other file of the trainer reads the environment; who needs a value is given
// this struct or a part of it.
#include <cstdint>
#include <optional>
#include <string>

namespace trireme {

/// Variables that launch() sets for its ranks.
inline constexpr const char* kOutputVariable = "TRIREME_LAUNCHER_OUTPUT";  ///< "terminal" or "log", after the launcher's own standard output
inline constexpr const char* kRanksVariable = "TRIREME_LAUNCHER_RANKS";    ///< how many ranks launch() was to start
inline constexpr const char* kHubVariable = "TRIREME_HUB";                 ///< Hub::address of the hub in the launcher's process

/// Variables by which Open MPI and other libraries are told where their files go.
inline constexpr const char* kSegmentsVariable = "OMPI_MCA_btl_vader_backing_directory";  ///< memory segments that ranks of a host share
inline constexpr const char* kSessionVariable = "OMPI_MCA_orte_tmpdir_base";              ///< session directories of all hosts
inline constexpr const char* kTemporaryVariable = "TMPDIR";

struct LaunchEnvironment {
  enum class Starter : uint8_t {
    kNone,    ///< a person or a script, also in a plain shell inside salloc, sbatch or `srun --pty`
    kMpirun,  ///< mpirun of Open MPI; inside a Slurm allocation, too, it counts the ranks
    kPmi,     ///< srun, or another program that speaks PMI or PMIx
  };
  Starter starter = Starter::kNone;

  // From launch().
  std::optional<int> launched_ranks = {};         ///< kRanksVariable
  std::optional<std::string> launch_output = {};  ///< kOutputVariable
  std::optional<std::string> hub_address = {};    ///< kHubVariable

  // From Slurm.
  std::optional<int> allocated_nodes = {};  ///< nodes of the allocation
  std::optional<int> step_tasks = {};       ///< tasks that srun has started in this step
  int first_node_tasks = 0;                 ///< of these on the step's first node; 0 outside a step

  // From the user or the launcher.
  std::optional<int> omp_threads = {};                       ///< OMP_NUM_THREADS; 0 where that is no number
  std::optional<std::string> temporary_directory = {};       ///< TMPDIR
  bool segments_are_placed = false;                          ///< kSegmentsVariable is set
  bool session_is_placed = false;                            ///< kSessionVariable, or the one for mpirun's host or the other hosts, is set
  std::string search_path = "/usr/local/bin:/usr/bin:/bin";  ///< PATH

  /// True in a rank that mpirun or an srun step started.
  bool is_rank() const { return starter != Starter::kNone; }
  /// True in a rank of launch().
  bool is_rank_of_launch() const { return is_rank() && launch_output.has_value(); }
};

/// The environment as it is now: to be read once in a process, before launch() adds to it for the ranks.
LaunchEnvironment read_launch_environment();

}  // namespace trireme
