#pragma once
#include <sys/types.h>

#include <atomic>
#include <thread>

namespace trireme {

/// Binds every listening socket of mpirun to the loopback interface, within about 10 ms of its creation. For jobs on one host, which need no
/// connections from other hosts: Open MPI 4 listens on all addresses regardless of its settings, and does not authenticate peers. Needs Linux 5.7 and
/// permission to ptrace a child; without them the sockets are left unchanged.
class LoopbackOnly {
 public:
  explicit LoopbackOnly(pid_t mpirun);
  ~LoopbackOnly();
  LoopbackOnly(const LoopbackOnly&) = delete;
  LoopbackOnly& operator=(const LoopbackOnly&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

}  // namespace trireme
