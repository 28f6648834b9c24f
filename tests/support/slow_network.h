#pragma once
// A network whose speed is known, between rank threads: what overlap gains can be reckoned beforehand.
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "parallel/comm/communicator.h"

namespace trireme::test {

/// What all ranks share. A collective operation, or a message, begins when all that take part have started it and the one before it on the same
/// link (the group, or the two ranks) is over, and takes `seconds` and a further 1 / bytes_per_second for each byte of its buffer. Only Work::wait
/// waits for it.
class SlowNetwork {
 public:
  using Clock = std::chrono::steady_clock;

  /// `group`: the one that is slow, "" for all.
  explicit SlowNetwork(std::string group, double seconds, double bytes_per_second = 0)
      : group_(std::move(group)), seconds_(seconds), bytes_per_second_(bytes_per_second) {}

  /// `inner`, a world, and every group made from it, over this network. Both outlive it.
  std::unique_ptr<Communicator> attach(Communicator& inner);

  bool slows(const std::string& group) const { return group_.empty() || group_ == group; }
  /// The place-th operation of a link: one more of its `participants` has started it, now.
  void start(const std::string& link, int64_t place, int participants, int64_t bytes);
  /// Sleeps until it is over. All participants have started it.
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
