#include "trainer/job/host_probe.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/mpirun_command.h"

namespace trireme {
namespace {

constexpr std::chrono::seconds kTimeout{15};
constexpr std::chrono::seconds kEnd{2};  ///< from SIGTERM, at which mpirun ends its own children, to SIGKILL

/// The environment, with this host's session directory of Open MPI below `directory`.
std::vector<std::string> probe_environment(const std::filesystem::path& directory) {
  std::vector<std::string> variables{concat("OMPI_MCA_orte_local_tmpdir_base=", directory.string())};
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (!std::string_view(*entry).starts_with("OMPI_MCA_orte_local_tmpdir_base=")) variables.emplace_back(*entry);
  return variables;
}

std::vector<char*> pointers(const std::vector<std::string>& words) {
  std::vector<char*> result;
  for (const std::string& word : words) result.push_back(const_cast<char*>(word.c_str()));
  result.push_back(nullptr);
  return result;
}

/// Starts a program in a process group of its own, with default signals and without output; -1 if that fails. A zombie is left at its end.
pid_t start(const std::vector<std::string>& command, const std::vector<std::string>& variables) {
  const std::vector<char*> words = pointers(command), environment = pointers(variables);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, STDOUT_FILENO, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  pid_t process = -1;
  if (::posix_spawn(&process, words.front(), &files, &attributes, words.data(), environment.data()) != 0) process = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return process;
}

}  // namespace

HostProbe::HostProbe(const LaunchEnvironment& environment, const std::vector<Host>& hosts, const std::filesystem::path& directory)
    : deadline_(std::chrono::steady_clock::now() + kTimeout) {
  const std::string mpirun = find_mpirun(environment).string();
  const bool hydra = mpirun_kind() == MpirunKind::kHydra;
  const std::vector<std::string> variables = probe_environment(directory);
  const auto file_of = [&](size_t host) { return directory / concat("probe-", host); };
  for (size_t i = 0; i < hosts.size(); ++i) write_durably(file_of(i), hosts[i].lines);
  for (size_t i = 0; i < hosts.size(); ++i)
    open_.push_back({hosts[i].name, start({mpirun, "-n", "1", hydra ? "-f" : "--hostfile", file_of(i).string(), "true"}, variables)});
}

void HostProbe::end(int signal) const {
  for (const Question& question : open_)
    if (question.process >= 0) ::kill(question.process, signal);
}

HostProbe::~HostProbe() {
  if (done()) return;
  deadline_ = std::min(deadline_, std::chrono::steady_clock::now());
  while (!done()) {
    take();
    ::poll(nullptr, 0, 20);
  }
}

std::vector<HostProbe::Answer> HostProbe::take() {
  std::vector<Answer> answers;
  const auto now = std::chrono::steady_clock::now();
  if (now > deadline_) end(now > deadline_ + kEnd ? SIGKILL : SIGTERM);
  std::erase_if(open_, [&](const Question& question) {
    int status = 0;
    if (question.process >= 0 && ::waitpid(question.process, &status, WNOHANG) == 0) return false;
    answers.push_back({question.host, question.process >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0});
    return true;
  });
  return answers;
}

std::vector<HostProbe::Answer> HostProbe::wait(const StopRequest& stop) {
  std::vector<Answer> all;
  while (!done() && !stop.requested()) {
    for (Answer& answer : take()) all.push_back(std::move(answer));
    if (!done()) ::poll(nullptr, 0, 20);
  }
  return all;
}

}  // namespace trireme
