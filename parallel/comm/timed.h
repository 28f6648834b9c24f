#pragma once
// A communicator that records how long each operation blocks its rank.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Seconds since the log's origin. The rank is blocked from `begin` to `started` (the verb's call) and from `wait` to `end` (Work::wait); in between
/// it did something else while the operation was in flight. If nothing was in flight after the call, `wait` and `end` equal `started`.
struct TimedOperation {
  std::string group;  ///< "shard"
  std::string verb;   ///< "all_gather"
  double begin = 0, started = 0, wait = 0, end = 0;
};

/// The log of one rank, used only by its main thread.
class CommunicationLog {
 public:
  using Clock = std::chrono::steady_clock;

  void start(Clock::time_point origin);
  /// Returns the operations begun since start(), in that order. All of them must have been waited for.
  std::vector<TimedOperation> stop();
  bool running() const { return running_; }
  double now() const { return std::chrono::duration<double>(Clock::now() - origin_).count(); }

  size_t add(TimedOperation operation);
  /// Records the wait of an operation, which ends now. Ignored if the operation began before start() or the log is stopped.
  void waited(size_t place, uint64_t recording, double wait);
  uint64_t recording() const { return recording_; }

 private:
  Clock::time_point origin_;
  std::vector<TimedOperation> operations_;
  bool running_ = false;
  uint64_t recording_ = 0;  ///< number of calls of start()
};

/// Wraps `inner`, a world, and every group of more than one rank made from it. `inner` and `log` outlive it.
std::unique_ptr<Communicator> timed(Communicator& inner, CommunicationLog& log);

}  // namespace trireme
