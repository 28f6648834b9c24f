#pragma once
// A network of known speed between rank threads, so that the gain of overlap can be calculated.
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "parallel/comm/communicator.h"

namespace trireme::test {

/// Shared by all ranks. A collective operation, or a message, begins when all participants have started it and the previous one on the same link (the
/// group, or the two ranks) has ended. It takes `seconds`, and 1 / bytes_per_second more for each byte of its buffer. Only Work::wait waits for it.
class SlowNetwork {
 public:
  using Clock = std::chrono::steady_clock;

  /// `group`: the slow group, "" for all.
  explicit SlowNetwork(std::string group, double seconds, double bytes_per_second = 0)
      : group_(std::move(group)), seconds_(seconds), bytes_per_second_(bytes_per_second) {}

  /// Wraps `inner`, a world, and every group made from it, to use this network. Both outlive the returned communicator.
  std::unique_ptr<Communicator> attach(Communicator& inner);

  bool slows(const std::string& group) const { return group_.empty() || group_ == group; }
  /// Records that one more of the `participants` starts the place-th operation of a link, now.
  void start(const std::string& link, int64_t place, int participants, int64_t bytes);
  /// Sleeps until that operation has ended. All participants must have started it.
  void wait(const std::string& link, int64_t place);

 private:
  struct Operation {
    int started = 0;
    Clock::time_point end;
  };
  std::string group_;
  double seconds_, bytes_per_second_;
  std::mutex mutex_;
  std::map<std::pair<std::string, int64_t>, Operation> operations_;
  std::map<std::string, Clock::time_point> free_;  ///< by link
};

}  // namespace trireme::test
