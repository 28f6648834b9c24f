#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
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

/// Passes the verdict from the hub's thread to the thread that waits for mpirun.
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

struct MpirunJobOptions {
  bool resumable = true;                   ///< a stop before the ranks are ready returns kRequeue, else kInternal
  bool has_findings = false;               ///< kFindings of a rank is a result; else it is the failure of a program that exits with 1
  std::function<bool()> should_move = {};  ///< asked while the job runs: true stops it as a stop request does, once it is ready
  std::chrono::seconds hang_limit{10};     ///< how long mpirun may run after all its ranks have ended before it is killed
};

/// The mpirun process: forwards signals to it and relays the output of the ranks. It runs in its own process group, so that Ctrl-C on a terminal
/// reaches only the launcher. If this process dies, mpirun receives SIGHUP, and a second child, the guard, kills it if it does not end.
class MpirunJob {
 public:
  /// Starts `command`. `verdicts`: receives the verdict of the hub that monitors the ranks; null without a hub. `relay`: receives mpirun's standard
  /// output; if it loses text (OutputRelay::lost_text), the job is stopped as on a stop request. Errors: IoError.
  MpirunJob(const std::vector<std::string>& command, const StopRequest& stop, const VerdictBox* verdicts, OutputRelay& relay,
            const MpirunJobOptions& options);
  ~MpirunJob();
  MpirunJob(const MpirunJob&) = delete;
  MpirunJob& operator=(const MpirunJob&) = delete;

  /// Waits until mpirun has ended; kills it after a verdict or if it hangs. Returns the exit code of the ranks (the first that is not 0) if it is an
  /// ExitCode and any rank has run; else ExitCode::kInternal, with the reason on standard error: the verdict, or mpirun's own notices.
  int wait();
  pid_t mpirun() const { return mpirun_; }
  /// The verdict that wait() has reported, if any.
  const std::optional<Verdict>& reported_verdict() const { return reported_; }
  /// The rank that mpirun has named as the first to fail, if it has.
  std::optional<int> first_rank() const { return filter_.first_rank() >= 0 ? std::optional(filter_.first_rank()) : std::nullopt; }
  /// True if the job was stopped because it should move.
  bool moves() const { return moves_; }

 private:
  using Clock = StopRequest::Clock;

  void poll_all(int milliseconds);
  bool pass_errors();
  bool pass_output();
  void forward_stop();
  void forward_save();
  void take_verdict();
  void watch_for_hang();
  void reap();
  void list_children();
  void kill_now();
  void wait_for_ranks();
  void condemn(const Verdict& verdict);
  const Verdict& final_verdict() const;
  void tell_verdict();
  bool is_answer(int code) const;
  int final_code();

  const StopRequest& stop_;
  SaveRequest save_;
  const VerdictBox* verdicts_;
  OutputRelay& relay_;
  MpirunJobOptions options_;
  const std::string program_;  ///< path of mpirun
  pid_t mpirun_ = -1;
  pid_t guard_ = -1;
  int child_ended_ = -1;  ///< a signalfd
  int errors_ = -1;       ///< read end of mpirun's standard error
  int output_ = -1;       ///< read end of mpirun's standard output
  int guard_pipe_ = -1;   ///< write end; the guard wakes when it closes
  MpirunOutputFilter filter_;
  bool forwarded_ = false;
  bool moves_ = false;
  std::optional<Clock::time_point> end_requested_;  ///< time of a second stop request, or of one before there was anything to save
  std::optional<Clock::time_point> condemned_;
  std::optional<Verdict> verdict_;  ///< not yet reported
  std::optional<Verdict> reported_;
  bool first_end_told_ = false;
  bool told_to_end_ = false;
  Clock::time_point next_look_ = Clock::now() + std::chrono::seconds(1);
  std::optional<Clock::time_point> all_dead_since_;
  std::vector<pid_t> children_;  ///< last known children of mpirun: the ranks of this host
  bool ended_ = false;
  int code_ = 0;         ///< 128 + n if signal n ended mpirun
  bool killed_ = false;  ///< mpirun itself was killed by a signal
};

/// Writes all of `text`, also to a descriptor that blocks or accepts partial writes.
void write_all(int descriptor, std::string_view text);

}  // namespace trireme
