#include "trainer/resilience/watch.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

#include "kernels/core/check.h"
#include "trainer/resilience/wire.h"

namespace trireme {
namespace {

constexpr int kLeaveCode = static_cast<int>(ExitCode::kInternal);

/// In rank 0, whose own Monitor is not told to leave.
void report_and_leave(const Verdict& verdict) {
  const std::string line = verdict.text + "\n";
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  (void)written;
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the others have read that they must leave
  ::_exit(kLeaveCode);
}

}  // namespace

Watch::Watch(Communicator& world) : world_(watched(world, progress_)) {
  const char* const launchers = std::getenv(kHubVariable);
  if (launchers == nullptr && world.size() == 1) return;
  const std::vector<std::string> hosts = all_gather_strings(world, this_host());
  std::string address;
  if (world.rank() == 0) {
    const bool one_host = std::all_of(hosts.begin(), hosts.end(), [&](const std::string& host) { return host == hosts.front(); });
    if (launchers == nullptr) hub_ = std::make_unique<Hub>(HubOptions{.ranks = world.size(), .one_host = one_host, .own_rank = 0}, report_and_leave);
    address = launchers != nullptr ? launchers : hub_->address();
  }
  monitor_ = std::make_unique<Monitor>(all_gather_strings(world, address)[0], world.rank(), progress_);
}

void die_with_parent() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != 1) return;
  // Either the parent had died before, or it is the first process of a container.
  std::string name;
  std::getline(std::ifstream("/proc/1/comm"), name);
  constexpr std::array kLaunchers{"mpirun", "mpiexec", "orterun", "orted", "prterun", "prted", "slurmstepd"};
  if (std::find(kLaunchers.begin(), kLaunchers.end(), name) == kLaunchers.end()) ::_exit(kLeaveCode);
}

}  // namespace trireme
