#pragma once
// What a sweep leaves in its directory besides the runs themselves.
//   points.json           the points as they were when the sweep began
//   sweep.jsonl           start and end of each job of the sweep
//   points/NAME/          run directory of a point
//   jobs/007/             of a point: config.yaml, events.jsonl (start and end of each of its jobs), output.log, messages.log
// How far a point has trained is read from its run directory; what it has failed by, from events.jsonl.
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "trainer/sweep/point_runs.h"

namespace trireme::sweep {

std::filesystem::path job_directory(const std::string& sweep_directory, size_t index);

struct Failure {
  int code = 0;  ///< exit code, or 128 + n for death by signal n
  std::string message;
};

/// What the jobs of a point have come to.
struct PointHistory {
  int64_t starts = 0;
  int64_t ends = 0;                ///< fewer than starts: jobs that run, or that died with the sweep, whose time is not known
  int64_t done_until = 0;          ///< the point has trained to this step, or has stopped early before it; 0: not known
  std::optional<Failure> failure;  ///< of the last job, if it failed
  double seconds = 0;              ///< of jobs that have ended
  bool has_run = false;            ///< the run directory has metrics
};

/// Reads the history of a point. A run directory that is gone counts as a point that was never started. Errors: IoError.
PointHistory history_of(const std::string& sweep_directory, const PointRun& run);

/// The events of a point's jobs. Each is on stable storage before the call returns. Errors: IoError.
void record_start(const std::string& sweep_directory, size_t index, int64_t until, int process);
void record_end(const std::string& sweep_directory, size_t index, int64_t until, int code, double seconds, const std::string& message);
/// Makes a failed point one that is started again.
void record_retry(const std::string& sweep_directory, size_t index);

/// Writes points.json if it does not exist, otherwise compares: points may be added behind the existing ones. Returns whether the sweep is new.
/// Errors: ConfigError that names every difference; DataError if points.json is damaged; IoError.
bool begin_or_compare(const SweepFile& file, const std::vector<PointRun>& runs);
/// The same without writing. Errors: those of begin_or_compare; with `must_exist` also ConfigError if the sweep has not begun.
bool compare_with_begun(const SweepFile& file, const std::vector<PointRun>& runs, bool must_exist);

/// Writes jobs/.../config.yaml, the frozen configuration of a point, unless it exists. Errors: IoError.
std::filesystem::path freeze_config(const std::string& sweep_directory, const PointRun& run);

/// Time that the jobs of a sweep have taken, for budget.hours. Not known of a job that was killed is what was after its last mark.
class SweepClock {
 public:
  /// Errors: IoError.
  explicit SweepClock(const std::string& sweep_directory);
  double hours() const;  ///< of all jobs, this one included
  void mark(const std::string& event);

 private:
  std::filesystem::path path_;
  double before_ = 0;  ///< seconds
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

}  // namespace trireme::sweep
