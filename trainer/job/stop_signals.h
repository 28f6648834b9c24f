#pragma once
// The process's signals. oneDNN's generated fp32 products use the stack pointer as a general register, so a signal handler that runs on a thread inside
// one makes the kernel write the signal frame over the heap. Therefore no thread that computes may ever take a signal: they are all blocked everywhere
// but in one thread, which does nothing else.
#include <chrono>
#include <csignal>

namespace trireme {

/// Blocks signals in the calling thread, and so in every thread that is started from now on, and starts the thread that takes them. To be called first
/// in main(); later calls do nothing. That thread records requests to stop (SIGTERM, SIGINT, SIGUSR1, SIGHUP, and SIGXCPU, by which batch systems tell that
/// the time is up) while a StopRequest lives. Before the first
/// one they end the process as they do by default. All other signals have their usual effect, and run there if a library has installed a handler. Signals that a
/// fault raises (SIGSEGV and the like) and SIGPIPE are not blocked: the kernel sends them to the thread that caused them. Errors: IoError.
void start_signal_thread();

/// Blocks SIGPIPE in the calling thread for good: a log whose reader has gone is no reason to end a run. A mask that was restored would deliver the
/// signal that is pending.
void ignore_closed_output();

/// While one lives, a request to stop is recorded instead of ending the process. Where several live they see the same requests, those since the first
/// of them. After the last one requests are ignored: a process that has done its work must not be killed while it leaves. SIGHUP does not count where the
/// process was started with it ignored, as nohup does.
class StopRequest {
 public:
  using Clock = std::chrono::steady_clock;
  /// What a second request does. Such are two SIGINT 0.3 s apart, or a SIGINT or SIGTERM a second after the first request: whoever ends a job may signal twice, and a
  /// launcher passes a signal on to ranks that have received it themselves. `kExit` ends the process at once with ExitCode::kInternal.
  enum class Second { kExit, kReport };

  /// Errors: IoError.
  explicit StopRequest(Second second = Second::kExit);
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  /// In this process: ranks must agree (a reduction over the world) before they act on it.
  bool requested() const { return signal() != 0; }
  /// The first that came; 0: none.
  int signal() const;
  /// A second request has come.
  bool insisted() const;
  /// Becomes readable with the first request, and stays so.
  int descriptor() const;
  /// Returns early, with false, as soon as a stop is requested.
  bool sleep(std::chrono::milliseconds time) const;

 private:
  Second second_;
};

}  // namespace trireme
