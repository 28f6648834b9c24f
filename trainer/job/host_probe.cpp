#include "trainer/job/host_probe.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>

#include "kernels/core/check.h"
#include "trainer/files/durable_file.h"
#include "trainer/job/mpirun_command.h"
#include "trainer/job/spawn.h"

namespace trireme {
namespace {

constexpr std::chrono::seconds kTimeout{15};
constexpr std::chrono::seconds kEnd{2};  ///< from SIGTERM, at which mpirun ends its own children, to SIGKILL

/// In a process group of its own; -1 if it cannot be started.
pid_t start(const std::vector<std::string>& command, const std::vector<std::string>& environment) {
  try {
    const pid_t process = spawn(command, {.own_group = true, .environment = environment});
    return process > 0 ? process : -1;
  } catch (const IoError&) {
    return -1;
  }
}

}  // namespace

HostProbe::HostProbe(const LaunchEnvironment& environment, const std::vector<Host>& hosts, const std::filesystem::path& directory)
    : deadline_(std::chrono::steady_clock::now() + kTimeout) {
  const std::string mpirun = find_mpirun(environment).string();
  const bool hydra = mpirun_kind() == MpirunKind::kHydra;
  // What mpirun keeps on this host goes below the directory, too.
  const std::vector<std::string> variables = environment_with({{"OMPI_MCA_orte_local_tmpdir_base", directory.string()}});
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
