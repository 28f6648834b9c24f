#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

#include "trainer/resilience/run_lock.h"
#include "trainer/sweep/point_runs.h"

namespace trireme::sweep {

/// How a point's process has ended.
struct PointEnd {
  int code = 0;         ///< exit code, or 128 + n for death by signal n
  bool killed = false;  ///< by a signal
  double seconds = 0;
  std::string message;  ///< the last lines of standard error, without notes and warnings; empty after exit code 0
};

/// `trireme train` of one point as a child in a process group of its own, so that Ctrl-C reaches only the sweep. The kernel kills the child when the
/// sweep dies; its own launcher then ends its ranks. Holds the lock of the point's job directory, so that two sweeps, or two tasks of an array, never run
/// the same point. Its start is recorded (state.h); its end is for the caller to record, who knows whether it was wanted.
class PointProcess {
 public:
  /// Starts the process, which trains until step `until`. `threads`: OMP_NUM_THREADS of each rank; nullopt: as in the environment.
  /// Errors: ConfigError if the point is being run; IoError.
  PointProcess(const std::string& sweep_directory, const PointRun& run, int64_t until, std::optional<int64_t> threads);
  /// Kills the process if it still runs.
  ~PointProcess();
  PointProcess(const PointProcess&) = delete;
  PointProcess& operator=(const PointProcess&) = delete;

  /// How it has ended; nullopt while it runs. Errors: IoError.
  std::optional<PointEnd> poll();
  void signal(int number) const;
  const PointRun& run() const { return *run_; }
  int64_t until() const { return until_; }
  /// The last step in metrics.jsonl; 0: none yet. Reads only the end of the file.
  int64_t last_step() const;

 private:
  std::string message(int code) const;

  std::string directory_;
  const PointRun* run_;
  int64_t until_;
  RunLock lock_;
  std::filesystem::path messages_;
  int64_t messages_before_ = 0;  ///< bytes of messages.log from earlier jobs
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
  pid_t process_ = -1;
};

}  // namespace trireme::sweep
