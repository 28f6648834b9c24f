#include "trainer/loop/launcher.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <climits>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "kernels/core/check.h"
#include "trainer/loop/environment.h"
#include "trainer/loop/mpirun_output.h"

namespace fs = std::filesystem;

namespace trireme {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

/// Set for the ranks: "terminal" or "log", after the launcher's own standard output.
constexpr const char* kOutputVariable = "TRIREME_LAUNCHER_OUTPUT";
constexpr std::array kStopSignals{SIGTERM, SIGINT, SIGUSR1};

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

fs::path find_mpirun() {
  std::istringstream directories(is_set("PATH") ? std::getenv("PATH") : "/usr/local/bin:/usr/bin:/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    const fs::path candidate = fs::path(directory.empty() ? "." : directory) / "mpirun";
    if (::access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  throw ConfigError(
      "mpirun was not found, and this layout needs more than one rank: install Open MPI (Debian, Ubuntu: apt install openmpi-bin), or start under "
      "srun");
}

int count_hosts(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw MissingFileError(concat("hosts file ", path, ": ", std::strerror(errno)));
  int hosts = 0;
  for (std::string line; std::getline(file, line);) {
    const auto first = line.find_first_not_of(" \t\r");
    if (first != line.npos && line[first] != '#') ++hosts;
  }
  if (hosts == 0) throw ConfigError(concat("hosts file ", path, " names no host"));
  return hosts;
}

/// What the user has set stays.
void set_default(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 0); }

/// Open MPI reads its parameters from the environment too, where the user's own choice wins.
void prepare_environment(int ranks, int hosts, bool one_host) {
  const int here = (ranks + hosts - 1) / hosts;
  set_default("OMPI_ALLOW_RUN_AS_ROOT", "1");
  set_default("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
  set_default("OMPI_MCA_rmaps_base_oversubscribe", "1");
  set_default("OMPI_MCA_hwloc_base_binding_policy", "none");
  set_default("OMPI_MCA_odls_base_sigkill_timeout", "0");  // a refused job ends a second sooner: no rank needs time after another has left
  if (here > usable_cores()) set_default("OMPI_MCA_mpi_yield_when_idle", "1");
  if (one_host) {  // shared memory only: starts in half the time
    set_default("OMPI_MCA_pml", "ob1");
    set_default("OMPI_MCA_btl", "vader,self");
  }
  set_default("OMP_NUM_THREADS", std::to_string(std::max(1, usable_cores() / here)));
  ::setenv(kOutputVariable, ::isatty(STDOUT_FILENO) != 0 ? "terminal" : "log", 1);
}

std::vector<std::string> command_line(int ranks, const std::vector<std::string>& arguments, const std::optional<std::string>& hosts_file) {
  std::vector<std::string> command{find_mpirun().string(), "-n", std::to_string(ranks)};
  if (hosts_file) {
    command.insert(command.end(), {"--hostfile", *hosts_file});
    // A remote rank inherits nothing that is not named; OMPI_* travels by itself.
    for (const char* name : {"OMP_NUM_THREADS", kOutputVariable}) command.insert(command.end(), {"-x", name});
    for (char** entry = environ; *entry != nullptr; ++entry) {
      const std::string name(*entry, std::strcspn(*entry, "="));
      const bool for_gpus = name == "LD_LIBRARY_PATH" || name == "CUDA_HOME" || name == "CUDA_PATH" || name.starts_with("NCCL_");
      if (for_gpus) command.insert(command.end(), {"-x", name});
    }
  }
  command.push_back(fs::read_symlink("/proc/self/exe").string());
  command.insert(command.end(), arguments.begin(), arguments.end());
  return command;
}

/// In the child: a process group of its own, so that a terminal's Ctrl-C reaches the launcher alone, and no life without its parent.
[[noreturn]] void become(const std::vector<std::string>& command, int standard_error, pid_t parent, const sigset_t& mask) {
  ::setpgid(0, 0);
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (::getppid() != parent) ::_exit(70);  // it died before prctl
  const int null = ::open("/dev/null", O_RDONLY);
  ::dup2(null, STDIN_FILENO);
  ::dup2(standard_error, STDERR_FILENO);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  ::execv(arguments[0], arguments.data());
  ::_exit(127);
}

/// Exit codes of the children of `parent` if it has some and all are zombies, else nothing.
std::optional<std::vector<int>> codes_of_dead_children(pid_t parent) {
  std::vector<int> codes;
  std::error_code error;
  for (const auto& task : fs::directory_iterator(concat("/proc/", parent, "/task"), error)) {
    std::ifstream children(task.path() / "children");
    for (pid_t child = 0; children >> child;) {
      std::string stat;
      std::getline(std::ifstream(concat("/proc/", child, "/stat")), stat);
      const auto name_end = stat.rfind(") ");
      if (name_end == stat.npos || stat[name_end + 2] != 'Z') return std::nullopt;
      const int status = std::atoi(stat.c_str() + stat.rfind(' '));  // the last field: as waitpid gives it
      codes.push_back(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
    }
  }
  if (codes.empty()) return std::nullopt;
  return codes;
}

void write_all(int descriptor, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(descriptor, text.data(), text.size());
    if (written < 0 && errno != EINTR) return;
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
  }
}

/// mpirun and what stands between it and the person.
class Job {
 public:
  Job(pid_t mpirun, int errors, int signals) : mpirun_(mpirun), errors_(errors), signals_(signals) {}

  /// Until mpirun ends; its exit code, 128 + n if signal n ended it.
  int wait() {
    while (!ended_) {
      std::array<pollfd, 2> sources{pollfd{errors_, POLLIN, 0}, pollfd{signals_, POLLIN, 0}};
      ::poll(sources.data(), sources.size(), 500);
      if (sources[0].revents != 0) pass_errors();
      if (sources[1].revents != 0) take_signals();
      forward_stop();
      watch_for_hang();
      int status = 0;
      if (!ended_ && ::waitpid(mpirun_, &status, WNOHANG) == mpirun_) {
        ended_ = true;
        code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
      }
    }
    while (pass_errors()) {
    }
    write_all(STDERR_FILENO, filter_.finish());
    return code_;
  }

  const std::string& notices() const { return filter_.notices(); }

 private:
  /// False when there is nothing more to read now.
  bool pass_errors() {
    std::array<char, 4096> bytes;
    const ssize_t count = ::read(errors_, bytes.data(), bytes.size());
    if (count > 0) write_all(STDERR_FILENO, filter_.feed({bytes.data(), static_cast<size_t>(count)}));
    if (count == 0) errors_ = -1;  // poll passes over it
    return count > 0;
  }

  void take_signals() {
    signalfd_siginfo info{};
    while (::read(signals_, &info, sizeof info) == sizeof info) {
      if (info.ssi_signo == SIGCHLD) continue;  // only wakes the loop
      if (info.ssi_signo == SIGINT && stop_requested_) ::kill(mpirun_, SIGTERM);
      if (!stop_requested_) stop_time_ = Clock::now();
      stop_requested_ = true;
    }
  }

  /// A signal that reached a rank before its handler stood would kill it, so it waits for the ranks to be ready; a limit, lest it wait for ever.
  void forward_stop() {
    if (!stop_requested_ || forwarded_ || !(filter_.ready() || Clock::now() - stop_time_ > seconds(30))) return;
    forwarded_ = true;
    ::kill(mpirun_, SIGUSR1);
  }

  /// Open MPI 4.1 at times locks itself up after its ranks have ended, and then heeds nothing but SIGKILL.
  void watch_for_hang() {
    if (Clock::now() < next_look_) return;
    next_look_ = Clock::now() + seconds(1);
    const auto codes = codes_of_dead_children(mpirun_);
    if (!codes) {
      all_dead_since_.reset();
    } else if (!all_dead_since_) {
      all_dead_since_ = Clock::now();
    } else if (Clock::now() - *all_dead_since_ > seconds(10)) {
      const auto first = std::find_if(codes->begin(), codes->end(), [](int code) { return code != 0; });
      code_ = first == codes->end() ? 0 : *first;
      ended_ = true;
      ::kill(-mpirun_, SIGKILL);
      ::waitpid(mpirun_, nullptr, 0);
    }
  }

  pid_t mpirun_;
  int errors_;
  int signals_;
  MpirunOutputFilter filter_;
  bool stop_requested_ = false;
  bool forwarded_ = false;
  Clock::time_point stop_time_;
  Clock::time_point next_look_ = Clock::now() + seconds(1);
  std::optional<Clock::time_point> all_dead_since_;
  bool ended_ = false;
  int code_ = 0;
};

bool is_our_code(int code) {
  for (ExitCode ours :
       {ExitCode::kOk, ExitCode::kUsage, ExitCode::kData, ExitCode::kMissingFile, ExitCode::kInternal, ExitCode::kIo, ExitCode::kRequeue})
    if (code == static_cast<int>(ours)) return true;
  return false;
}

std::atomic<bool> stop_requested = false;  // a signal handler has no other way to speak
static_assert(std::atomic<bool>::is_always_lock_free);
std::array<struct sigaction, kStopSignals.size()> previous_actions;

}  // namespace

bool under_launcher() {
  if (is_set("OMPI_COMM_WORLD_SIZE")) return true;
  if (is_set("SLURM_PTY_PORT")) return false;  // a shell that `srun --pty` opened
  if (is_set("PMIX_RANK") || is_set("PMI_RANK")) return true;
  // Batch scripts and the shells of salloc have a step id as well, from the reserved end of the range.
  constexpr unsigned long kFirstReservedStep = 0xfffffff0UL;
  const char* step = std::getenv("SLURM_STEP_ID");
  return step != nullptr && is_set("SLURM_PROCID") && std::strtoul(step, nullptr, 10) < kFirstReservedStep;
}

int launch(int ranks, const std::vector<std::string>& arguments, const std::optional<std::string>& hosts_file) {
  const int hosts = hosts_file ? count_hosts(*hosts_file) : 1;
  const char* nodes = std::getenv("SLURM_JOB_NUM_NODES");
  const std::vector<std::string> command = command_line(ranks, arguments, hosts_file);
  prepare_environment(ranks, hosts, !hosts_file && (nodes == nullptr || std::string(nodes) == "1"));

  sigset_t watched, blocked, mask;
  sigemptyset(&watched);
  for (int signal : kStopSignals) sigaddset(&watched, signal);
  sigaddset(&watched, SIGCHLD);
  blocked = watched;
  sigaddset(&blocked, SIGPIPE);  // a log whose reader has gone is no reason to end the run
  ::sigprocmask(SIG_BLOCK, &blocked, &mask);
  const int signals = ::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC);
  std::array<int, 2> errors{};
  if (signals < 0 || ::pipe2(errors.data(), O_CLOEXEC) != 0) throw IoError(concat("cannot start mpirun: ", std::strerror(errno)));
  const pid_t self = ::getpid();
  const pid_t mpirun = ::fork();
  if (mpirun < 0) throw IoError(concat("cannot start mpirun: ", std::strerror(errno)));
  if (mpirun == 0) become(command, errors[1], self, mask);
  ::close(errors[1]);
  ::fcntl(errors[0], F_SETFL, O_NONBLOCK);

  Job job(mpirun, errors[0], signals);
  const int code = job.wait();
  ::close(errors[0]);
  ::close(signals);
  ::sigprocmask(SIG_SETMASK, &mask, nullptr);
  if (is_our_code(code)) return code;
  write_all(STDERR_FILENO, job.notices().empty() ? concat("mpirun ended with code ", code, "\n") : job.notices());
  return static_cast<int>(ExitCode::kInternal);
}

void announce_ready() {
  if (is_set(kOutputVariable)) write_all(STDERR_FILENO, concat(kReadyLine, "\n"));
}

bool standard_output_is_terminal() {
  const char* launched = std::getenv(kOutputVariable);
  if (launched != nullptr) return std::string(launched) == "terminal";
  return !under_launcher() && ::isatty(STDOUT_FILENO) != 0;
}

StopRequest::StopRequest() {
  stop_requested = false;
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = true; };
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (size_t i = 0; i < kStopSignals.size(); ++i) ::sigaction(kStopSignals[i], &action, &previous_actions[i]);
}

StopRequest::~StopRequest() {
  for (size_t i = 0; i < kStopSignals.size(); ++i) ::sigaction(kStopSignals[i], &previous_actions[i], nullptr);
}

bool StopRequest::requested() const { return stop_requested; }

}  // namespace trireme
