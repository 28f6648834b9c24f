#pragma once
// A communicator that records how long each operation blocks its rank.
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/device_clock.h"
#include "parallel/comm/communicator.h"

namespace trireme {

/// Seconds since the log's origin. The rank is blocked from `begin` to `started` (the verb's call) and from `wait` to `end` (Work::wait); in between
/// it did something else while the operation was in flight. If nothing was in flight after the call, `wait` and `end` equal `started`. On a GPU it is
/// the compute stream that is blocked, not the host.
struct TimedOperation {
  std::string group;  ///< "shard"
  std::string verb;   ///< "all_gather"
  double begin = 0, started = 0, wait = 0, end = 0;
};

/// The log of one rank, used only by its main thread.
class CommunicationLog {
 public:
  using Moment = DeviceClock::Moment;

  /// `clock` must outlive the recording.
  void start(DeviceClock& clock);
  /// Returns the operations begun since start(), in that order. All of them must have been waited for. On a GPU it waits for the last one.
  std::vector<TimedOperation> stop();
  bool running() const { return clock_ != nullptr; }
  /// Requires running().
  DeviceClock& clock() const { return *clock_; }

  size_t add(const std::string& group, const std::string& verb, const Moment& begin, const Moment& started);
  /// Records the wait of an operation. Ignored if the operation began before start() or the log is stopped.
  void waited(size_t place, uint64_t recording, const Moment& wait, const Moment& end);
  uint64_t recording() const { return recording_; }

 private:
  struct Operation {
    std::string group, verb;
    Moment begin, started, wait, end;
  };
  DeviceClock* clock_ = nullptr;  ///< null: stopped
  std::vector<Operation> operations_;
  uint64_t recording_ = 0;  ///< number of calls of start()
};

/// Wraps `inner`, a world, and every group of more than one rank made from it. `inner` and `log` outlive it.
std::unique_ptr<Communicator> timed(Communicator& inner, CommunicationLog& log);

}  // namespace trireme
