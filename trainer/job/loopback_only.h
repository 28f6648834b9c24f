#pragma once
#include <sys/types.h>

#include <atomic>
#include <thread>

namespace trireme {

/// Where all ranks run on this host, nothing of mpirun has to be reached from another one, but Open MPI 4 listens on all addresses whatever its settings say,
/// and does not authenticate peers. This confines each socket that mpirun listens on to the loopback interface, as soon as it is seen: within some 10 ms. Needs
/// Linux 5.7 and the right to trace one's own child; without them the sockets stay as they are.
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
