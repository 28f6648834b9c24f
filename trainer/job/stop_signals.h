#pragma once
// Signal handling of the process. oneDNN's generated fp32 matrix kernels use the stack pointer as a general register: a signal delivered to a thread
// inside one makes the kernel write the signal frame over the heap. Therefore all signals are blocked in every thread except one, which does nothing
// else.
#include <chrono>
#include <csignal>
#include <functional>

namespace trireme {

/// Blocks signals in the calling thread, and therefore in all threads started later, and starts the signal thread. Must be the first call in main().
/// Later calls do nothing. Errors: IoError.
///   - While a StopRequest exists, the signal thread records stop requests: SIGTERM, SIGINT, SIGUSR1, SIGHUP, and SIGXCPU, which batch systems send
///     when the time limit is reached. The same holds for SIGUSR2 and a SaveRequest, and for SIGQUIT and a StackRequest. Before the first such object
///     these signals end the process as by default.
///   - All other signals keep their default action. Handlers that a library has installed run on the signal thread.
///   - Signals raised by a fault (SIGSEGV etc.) and SIGPIPE are not blocked: the kernel sends them to the thread that caused them.
void start_signal_thread();

/// While an object of this class exists, SIGUSR2 requests a checkpoint instead of ending the process. All objects see the same request. After the
/// last one is destroyed SIGUSR2 is ignored, so that a finished process is not killed while it exits.
class SaveRequest {
 public:
  /// Errors: IoError.
  SaveRequest();
  ~SaveRequest();
  SaveRequest(const SaveRequest&) = delete;
  SaveRequest& operator=(const SaveRequest&) = delete;

  /// True after a SIGUSR2 to this process, until clear().
  bool requested() const;
  void clear();
};

/// While an object of this class exists, SIGQUIT calls a function on the signal thread instead of ending the process. Other runtimes print the stacks
/// of their threads on SIGQUIT too. Of several objects the newest is called. After the last one is destroyed SIGQUIT is ignored, so that a finished
/// process is not killed while it exits.
class StackRequest {
 public:
  /// `answer` must return soon, and must not create or destroy such objects. Errors: IoError.
  explicit StackRequest(std::function<void()> answer = [] {});
  ~StackRequest();
  StackRequest(const StackRequest&) = delete;
  StackRequest& operator=(const StackRequest&) = delete;

 private:
  std::function<void()> answer_;
};

/// Blocks SIGPIPE permanently in the calling thread, so that a closed log does not end a run. The mask is never restored, because that would deliver
/// a pending signal.
void ignore_closed_output();

/// While an object of this class exists, a stop request is recorded instead of ending the process. All objects see the same requests: those since the
/// first object was created. After the last one is destroyed requests are ignored, so that a finished process is not killed while it exits. SIGHUP
/// does not count if the process was started with it ignored (nohup).
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;
  /// Effect of a second request: `kExit` ends the process immediately with ExitCode::kInternal. A second request is a SIGINT at least 0.3 s after a
  /// SIGINT, or a SIGINT or SIGTERM at least 1 s after the first request; closer signals are duplicates, e.g. one sent to the ranks directly and
  /// forwarded by a launcher.
  enum class Second { kExit, kReport };

  /// Errors: IoError.
  explicit StopRequest(Second second = Second::kExit);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// True after a request to this process. Ranks must agree (a reduction over the world) before they act on it.
  bool requested() const { return signal() != 0; }
  /// The first signal received; 0: none.
  int signal() const;
  /// True after a second request.
  bool second_requested() const;
  /// Readable from the first request on.
  int descriptor() const;
  /// Sleeps for `time`. Returns early with false as soon as a stop is requested.
  bool sleep(std::chrono::milliseconds time) const;

 private:
  Second second_;
};

}  // namespace trireme
