#pragma once
// A communicator that notes how long its rank is held up by each operation: where the time of a step goes.
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Seconds since the log's origin. The rank is held up from `begin` to `started` (the verb's call) and from `wait` to `end` (Work::wait); between
/// the two it did something else while the operation was in flight. `wait` is `started` and `end` too where nothing was in flight after the call.
struct TimedOperation {
  std::string group;  ///< "shard"
  std::string verb;   ///< "all_gather"
  double begin = 0, started = 0, wait = 0, end = 0;
};

/// Of one rank, used by its main thread alone.
class CommunicationLog {
 public:
  using Clock = std::chrono::steady_clock;

  void start(Clock::time_point origin);
  /// The operations begun since start(), in that order. All of them must have been waited for.
  std::vector<TimedOperation> stop();
  bool running() const { return running_; }
  double now() const { return std::chrono::duration<double>(Clock::now() - origin_).count(); }

  size_t add(TimedOperation operation);
  /// The wait of an operation is over. One begun before start(), or waited for after stop(), counts nowhere.
  void waited(size_t place, uint64_t recording, double wait);
  uint64_t recording() const { return recording_; }

 private:
  Clock::time_point origin_;
  std::vector<TimedOperation> operations_;
  bool running_ = false;
  uint64_t recording_ = 0;  ///< how many times start() was called
};

/// Wraps `inner`, a world, and every group of more than one rank made from it. `inner` and `log` outlive it.
std::unique_ptr<Communicator> timed(Communicator& inner, CommunicationLog& log);

}  // namespace trireme
