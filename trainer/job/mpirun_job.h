#pragma once
#include <sys/types.h>

#include <chrono>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trainer/job/mpirun_output.h"
#include "trainer/job/output_relay.h"
#include "trainer/job/stop_signals.h"
#include "trainer/resilience/hub.h"

namespace trireme {

/// Where the hub's thread leaves its verdict for the thread that waits for mpirun.
class VerdictBox {
 public:
  /// Errors: IoError.
  VerdictBox();
  ~VerdictBox();
  VerdictBox(const VerdictBox&) = delete;
  VerdictBox& operator=(const VerdictBox&) = delete;

  void put(const Verdict& verdict);
  std::optional<Verdict> get() const;
  /// Readable once there is a verdict.
  int descriptor() const { return descriptor_; }

 private:
  int descriptor_;
  mutable std::mutex mutex_;
  std::optional<Verdict> verdict_;
};

/// mpirun, and what stands between it and the person: signals in, the ranks' words out. It lives in a process group of its own, so that a
/// terminal's Ctrl-C reaches the launcher alone. If this process dies, mpirun is told to end, and a guard, a second child, kills it if it does not.
class MpirunJob {
 public:
  /// Starts `command`. `verdicts`: of the hub that watches its ranks; null where none does. `relay`: takes mpirun's standard output; a text that it cannot
  /// write ends the job as a request to stop does. `resumable`: a stop before the ranks are ready ends with kRequeue, else with kInternal. Errors: IoError.
  MpirunJob(const std::vector<std::string>& command, const StopRequest& stop, const VerdictBox* verdicts, OutputRelay& relay, bool resumable);
  ~MpirunJob();
  MpirunJob(const MpirunJob&) = delete;
  MpirunJob& operator=(const MpirunJob&) = delete;

  /// Until mpirun has ended, by itself or, after a verdict or when it hangs, by force. Returns the exit code: that of the ranks (the first that is not
  /// 0) where it is one of ours, and any rank has run, else ExitCode::kInternal with the reason on standard error: the verdict, or mpirun's own words.
  int wait();
  pid_t mpirun() const { return mpirun_; }

 private:
  using Clock = StopRequest::Clock;

  void poll_all(int milliseconds);
  bool pass_errors();
  bool pass_output();
  void forward_stop();
  void take_verdict();
  void watch_for_hang();
  void reap();
  void list_children();
  void kill_now();
  void wait_for_ranks();
  void condemn(const Verdict& verdict);
  const Verdict& final_verdict() const;
  void tell_verdict();
  int final_code();

  const StopRequest& stop_;
  const VerdictBox* verdicts_;
  OutputRelay& relay_;
  bool resumable_;
  const std::string program_;  ///< mpirun's file
  pid_t mpirun_ = -1;
  pid_t guard_ = -1;
  int child_ended_ = -1;  ///< a signalfd
  int errors_ = -1;       ///< read end of mpirun's standard error
  int output_ = -1;       ///< read end of its standard output
  int guard_pipe_ = -1;   ///< write end; the guard wakes when it closes
  MpirunOutputFilter filter_;
  bool forwarded_ = false;
  std::optional<Clock::time_point> end_requested_;  ///< by a second request to stop, or by one before there was anything to save
  std::optional<Clock::time_point> condemned_;
  std::optional<Verdict> verdict_;  ///< to be told
  bool first_end_told_ = false;
  bool told_to_end_ = false;
  Clock::time_point next_look_ = Clock::now() + std::chrono::seconds(1);
  std::optional<Clock::time_point> all_dead_since_;
  std::vector<pid_t> children_;  ///< of mpirun, when last seen: the ranks of this host
  bool ended_ = false;
  int code_ = 0;         ///< 128 + n if signal n ended mpirun
  bool killed_ = false;  ///< mpirun itself, by a signal
};

/// All of it, to a descriptor that may block or take less at a time.
void write_all(int descriptor, std::string_view text);

}  // namespace trireme
