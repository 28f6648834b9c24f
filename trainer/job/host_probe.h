#pragma once
#include <sys/types.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "trainer/job/host_pool.h"
#include "trainer/job/launch_environment.h"
#include "trainer/job/stop_signals.h"

namespace trireme {

/// Tries on several hosts at once whether mpirun can start a program there.
class HostProbe {
 public:
  /// Starts `mpirun -n 1 true` for each host. `directory`: for hostfiles and for what mpirun keeps on this host. Errors: ConfigError if there is no
  /// mpirun; IoError.
  HostProbe(const LaunchEnvironment& environment, const std::vector<Host>& hosts, const std::filesystem::path& directory);
  ~HostProbe();
  HostProbe(const HostProbe&) = delete;
  HostProbe& operator=(const HostProbe&) = delete;

  struct Answer {
    std::string host;
    bool reachable = false;
  };
  /// Takes the answers that have come since the last call. A host that has not answered after 15 seconds is not reachable.
  std::vector<Answer> take();
  bool done() const { return open_.empty(); }
  /// Waits for all answers, or until a stop is requested.
  std::vector<Answer> wait(const StopRequest& stop);

 private:
  struct Question {
    std::string host;
    pid_t process;
  };
  void end(int signal) const;

  std::vector<Question> open_;
  std::chrono::steady_clock::time_point deadline_;
};

}  // namespace trireme
