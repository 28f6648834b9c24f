#pragma once
#include <chrono>
#include <csignal>

namespace trireme {

/// Requests to stop, as the launcher takes them: SIGTERM, SIGINT and SIGUSR1 are blocked for this thread and those it starts while one of these lives, and
/// read instead. A log whose reader has gone (SIGPIPE) is no reason to end a run either.
class StopSignals {
 public:
  using Clock = std::chrono::steady_clock;

  /// Errors: IoError.
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  /// Readable when a signal has come, or a child has ended.
  int descriptor() const { return descriptor_; }
  void read();
  bool requested() const { return requested_; }
  /// A SIGINT after the first request.
  bool insisted() const { return insisted_; }
  Clock::time_point first_request() const { return first_request_; }
  /// False as soon as a stop is requested.
  bool sleep(std::chrono::milliseconds time);
  /// Of the thread before: for its children.
  const sigset_t& mask_before() const { return mask_before_; }

 private:
  int descriptor_ = -1;
  sigset_t mask_before_{};
  bool requested_ = false;
  bool insisted_ = false;
  Clock::time_point first_request_;
};

}  // namespace trireme
