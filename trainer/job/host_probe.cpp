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

/// Starts a program in a process group of its own, with default signals and without output; -1 if that fails. A zombie is left at its end.
pid_t start(const std::vector<std::string>& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
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
  if (::posix_spawn(&process, words.front(), &files, &attributes, words.data(), environ) != 0) process = -1;
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return process;
}

}  // namespace

HostProbe::HostProbe(const LaunchEnvironment& environment, const std::vector<Host>& hosts, const std::filesystem::path& directory)
    : deadline_(std::chrono::steady_clock::now() + kTimeout) {
  const std::string mpirun = find_mpirun(environment).string();
  const bool hydra = mpirun_kind() == MpirunKind::kHydra;
  for (size_t i = 0; i < hosts.size(); ++i) {
    const std::filesystem::path file = directory / concat("probe-", i);
    write_durably(file, hosts[i].lines);
    open_.push_back({hosts[i].name, start({mpirun, "-n", "1", hydra ? "-f" : "--hostfile", file.string(), "true"})});
  }
}

HostProbe::~HostProbe() {
  for (const Question& question : open_) {
    if (question.process < 0) continue;
    ::kill(-question.process, SIGKILL);
    ::waitpid(question.process, nullptr, 0);
  }
}

std::vector<HostProbe::Answer> HostProbe::take() {
  std::vector<Answer> answers;
  const bool late = std::chrono::steady_clock::now() > deadline_;
  std::erase_if(open_, [&](const Question& question) {
    int status = 0;
    if (question.process >= 0 && late) ::kill(-question.process, SIGKILL);
    if (question.process >= 0 && ::waitpid(question.process, &status, late ? 0 : WNOHANG) == 0) return false;
    answers.push_back({question.host, question.process >= 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0});
    return true;
  });
  return answers;
}

std::vector<HostProbe::Answer> HostProbe::wait() {
  std::vector<Answer> all;
  while (!done()) {
    for (Answer& answer : take()) all.push_back(std::move(answer));
    if (!done()) ::poll(nullptr, 0, 20);
  }
  return all;
}

}  // namespace trireme
