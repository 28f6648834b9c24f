#pragma once
#include <csignal>
#include <thread>
#include <utility>

namespace trireme {

/// A thread that takes no signals: they are for the main thread, whose calls they interrupt. Errors: std::system_error.
template <class Body>
std::thread background_thread(Body&& body) {
  struct AllBlocked {  // which the new thread inherits
    AllBlocked() {
      sigset_t all;
      ::sigfillset(&all);
      ::pthread_sigmask(SIG_SETMASK, &all, &before);
    }
    ~AllBlocked() { ::pthread_sigmask(SIG_SETMASK, &before, nullptr); }
    sigset_t before;
  } const blocked;
  return std::thread(std::forward<Body>(body));
}

}  // namespace trireme
