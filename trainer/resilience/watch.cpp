#include "trainer/resilience/watch.h"

#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <string_view>
#include <thread>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr int kUnwatchedExitCode = static_cast<int>(ExitCode::kInternal);

/// Verdict handler in rank 0, whose own Monitor receives no order to exit.
void report_and_leave(const Verdict& verdict, RankRecord& record) {
  const std::string line = verdict.text + "\n";
  const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  (void)written;
  record.end_in_time(concat("ended by the job monitor: ", verdict.text));
  std::this_thread::sleep_for(std::chrono::milliseconds(200));  // until the others have read the order to exit
  ::_exit(kUnwatchedExitCode);
}

}  // namespace

Watch::Watch(Communicator& world, bool one_host, double silence_seconds, const std::optional<std::string>& launchers_hub,
             const std::shared_ptr<const crypto::Key>& key) {
  if (!launchers_hub && world.size() == 1) return;
  // With the launcher's hub no communication is needed here, so a rank that hangs earlier does not block the others and is reported as absent.
  std::string address = launchers_hub.value_or("");
  if (!launchers_hub) {
    const HubOptions options{.ranks = world.size(), .one_host = one_host, .silence_seconds = silence_seconds, .own_rank = 0, .key = key};
    if (world.rank() == 0) hub_ = std::make_unique<Hub>(options, [this](const Verdict& verdict) { report_and_leave(verdict, record_); });
    address = all_gather_strings(world, hub_ ? hub_->address() : "")[0];
  }
  monitor_ = std::make_unique<Monitor>(address, world.rank(), record_, key);
}

void die_with_parent() {
  const pid_t parent = ::getppid();  // may be 1: in a container that may be the launcher
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() == parent) return;
  constexpr std::string_view kWhy = "the process that started this rank has died; exiting\n";
  const ssize_t written = ::write(STDERR_FILENO, kWhy.data(), kWhy.size());
  (void)written;
  ::_exit(kUnwatchedExitCode);
}

}  // namespace trireme
