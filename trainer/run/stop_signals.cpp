#include "trainer/run/stop_signals.h"

#include <poll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "kernels/core/check.h"

namespace trireme {

StopSignals::StopSignals() {
  sigset_t watched;
  sigemptyset(&watched);
  for (int signal : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) sigaddset(&watched, signal);
  descriptor_ = ::signalfd(-1, &watched, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor_ < 0) throw IoError(concat("signals cannot be watched: ", std::strerror(errno)));
  sigaddset(&watched, SIGPIPE);
  ::pthread_sigmask(SIG_BLOCK, &watched, &mask_before_);
}

StopSignals::~StopSignals() {
  ::close(descriptor_);
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
}

void StopSignals::read() {
  signalfd_siginfo info{};
  while (::read(descriptor_, &info, sizeof info) == sizeof info) {
    if (info.ssi_signo == SIGCHLD) continue;  // only wakes its reader
    if (requested_ && info.ssi_signo == SIGINT) insisted_ = true;
    if (!requested_) first_request_ = Clock::now();
    requested_ = true;
  }
}

bool StopSignals::sleep(std::chrono::milliseconds time) {
  const auto end = Clock::now() + time;
  for (read(); !requested_; read()) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    if (left <= 0) return true;
    pollfd source{descriptor_, POLLIN, 0};
    ::poll(&source, 1, static_cast<int>(std::min<int64_t>(left, 60'000)));
  }
  return false;
}

}  // namespace trireme
