#include "trainer/job/mpirun_command.h"

#include <netdb.h>
#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "parallel/comm/mpi.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/host_pool.h"
#include "trainer/job/omp_spinning.h"
#include "trainer/machine/environment.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

/// The current path of this program, which may have been moved.
std::string own_program() {
  const std::string path = fs::read_symlink("/proc/self/exe").string();  // "NAME (deleted)" once another file has taken its place
  std::error_code error;
  if (!fs::exists(path, error))
    throw MissingFileError(
        concat("the program file was removed or replaced while it ran (", path, "), so no more ranks can be started; rerun the same command"));
  return path;
}

/// Whether ranks on other hosts need this variable of the user: threads, and what configures CUDA, NCCL and the network libraries below it.
bool is_forwarded(std::string_view name, std::string_view value) {
  constexpr std::array<std::string_view, 5> kNames{"LD_LIBRARY_PATH", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", kHubVariable, kTimesVariable};
  constexpr std::array<std::string_view, 4> kPrefixes{"CUDA_", "NCCL_", "FI_", "UCX_"};
  if (name == "CUDA_VISIBLE_DEVICES" && (value.starts_with("GPU-") || value.starts_with("MIG-"))) return false;  // UUIDs name GPUs of this host
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

}  // namespace

MpirunKind mpirun_kind(const std::string& library) { return library.starts_with("Open MPI") ? MpirunKind::kOpenMpi : MpirunKind::kHydra; }

MpirunKind mpirun_kind() {
  static const MpirunKind kind = mpirun_kind(mpi_library_version());
  return kind;
}

fs::path find_mpirun(const LaunchEnvironment& environment, MpirunKind kind) {
  const bool hydra = kind == MpirunKind::kHydra;
  if (const auto found = find_program(environment, {hydra ? "mpirun.mpich" : "mpirun.openmpi", "mpirun"})) return *found;
  throw ConfigError(concat("mpirun was not found, and this layout needs more than one rank: install ",
                           hydra ? "MPICH (Debian, Ubuntu: apt install mpich)" : "Open MPI (Debian, Ubuntu: apt install openmpi-bin)",
                           ", or start under srun"));
}

std::string hosts_text(const std::string& hosts_file) {
  constexpr int64_t kMostBytes = 16 << 20;
  std::string text;
  try {
    text = read_text(hosts_file, kMostBytes);
  } catch (const MissingFileError& error) {
    throw MissingFileError(concat("hosts file ", error.what()));
  } catch (const Error& error) {
    throw Error(error.code(), concat("hosts file ", error.what()));
  }
  if (parse_hosts(text).empty()) throw ConfigError(concat("hosts file ", hosts_file, " lists no host"));
  const HostfileForm form = mpirun_kind() == MpirunKind::kHydra ? HostfileForm::kHydra : HostfileForm::kOpenMpi;
  if (const std::string problem = problem_in_hosts(text, form); !problem.empty()) throw ConfigError(concat("hosts file ", hosts_file, ":", problem));
  return text;
}

namespace {

/// True unless the system knows no address for the name.
bool has_address(const std::string& name) {
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(name.c_str(), nullptr, nullptr, &found);
  if (found != nullptr) ::freeaddrinfo(found);
  return error != EAI_NONAME;  // a name server that does not answer now may later
}

/// The user's ssh may know names that the system does not.
bool has_ssh_names() {
  const passwd* const user = ::getpwuid(::geteuid());
  std::error_code ignored;
  return user != nullptr && fs::exists(fs::path(user->pw_dir) / ".ssh" / "config", ignored);
}

}  // namespace

void check_addresses(const std::string& hosts_file) {
  const std::string text = hosts_text(hosts_file);
  if (has_ssh_names()) return;
  for (const Host& host : parse_hosts(text)) {
    const std::string name = host.name.substr(host.name.rfind('@') + 1);  // user@host
    if (!has_address(name))
      throw ConfigError(concat("hosts file ", hosts_file, ":", line_of_host(text, host.name), ": ", host.name,
                               ": no address is known for this name; allowed a "
                               "host of /etc/hosts or of the name server, or an IP address"));
  }
}

int count_hosts(const std::string& hosts_file) { return static_cast<int>(parse_hosts(hosts_text(hosts_file)).size()); }

/// Does not override a value that the user has set.
void LaunchVariables::set_default(const char* name, const std::string& value) {
  if (is_variable_set(name)) return;
  ::setenv(name, value.c_str(), 0);
  ours_.insert(name);
}

void LaunchVariables::set(int ranks, int host_ranks, bool one_host) {
  for (const std::string& name : std::exchange(ours_, {})) ::unsetenv(name.c_str());
  // Open MPI 5 starts ranks through PRTE, which has variables of its own. MPICH needs none: it allows root and more ranks than cores.
  for (const char* root : {"OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"}) {
    set_default(root, "1");
    set_default(concat(root, "_CONFIRM").c_str(), "1");
  }
  set_default("OMPI_MCA_rmaps_base_oversubscribe", "1");
  set_default("PRTE_MCA_rmaps_default_mapping_policy", ":oversubscribe");
  set_default("OMPI_MCA_hwloc_base_binding_policy", "none");
  set_default("PRTE_MCA_hwloc_default_binding_policy", "none");
  for (const char* timeout : {"OMPI_MCA_odls_base_sigkill_timeout", "PRTE_MCA_odls_base_sigkill_timeout"})
    set_default(timeout, "0");  // a refused job ends one second sooner: no rank needs time after another has exited
  if (host_ranks > usable_cores()) set_default("OMPI_MCA_mpi_yield_when_idle", "1");
  if (one_host) {  // shared memory only: halves the start-up time
    set_default("OMPI_MCA_pml", "ob1");
    set_default("OMPI_MCA_btl", "vader,self");
    // The address at which ranks reach mpirun. Open MPI 5 takes that of a network interface, where LoopbackOnly would cut them off.
    set_default("PMIX_MCA_ptl_base_if_include", "lo");
  }
  set_default("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / host_ranks)));
  const LaunchEnvironment environment = read_launch_environment();
  if (!environment.spinning_is_chosen) {
    // Threads that spin at the end of a parallel region take the cores from ranks they wait for: measured more than ten times slower.
    const bool oversubscribed = host_ranks * environment.omp_threads.value_or(0) > usable_cores();
    oversubscribed ? set_default("OMP_WAIT_POLICY", "passive") : set_default("GOMP_SPINCOUNT", kSpinCount);
  }
  // mpirun starts its daemons by srun, which would wait for the CPUs of a step that a lost node has not ended yet.
  if (environment.slurm_job) set_default("SLURM_OVERLAP", "1");
  ::setenv(kRanksVariable, std::to_string(ranks).c_str(), 1);
  ::setenv(kOutputVariable, ::isatty(STDOUT_FILENO) == 0 ? "log" : ::isatty(STDERR_FILENO) == 0 ? "terminal-output" : "terminal", 1);
}

std::vector<std::string> mpirun_command(const LaunchEnvironment& environment, int ranks, const std::vector<std::string>& arguments,
                                        const std::optional<std::string>& hosts_file, bool one_host, MpirunKind kind) {
  const bool hydra = kind == MpirunKind::kHydra;
  std::vector<std::string> command{find_mpirun(environment, kind).string(), "-n", std::to_string(ranks)};
  if (hosts_file) command.insert(command.end(), {hydra ? "-f" : "--hostfile", *hosts_file});
  if (!one_host && !hydra) {
    // A remote rank inherits only named variables; Open MPI forwards OMPI_* automatically.
    for (const char* name : {"OMP_NUM_THREADS", kOutputVariable, kRanksVariable}) command.insert(command.end(), {"-x", name});
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string_view text = *entry;
      const size_t equals = std::min(text.find('='), text.size());
      const std::string_view name = text.substr(0, equals);
      if (is_forwarded(name, text.substr(std::min(equals + 1, text.size())))) command.insert(command.end(), {"-x", std::string(name)});
    }
  }
  command.push_back(own_program());
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

}  // namespace trireme
