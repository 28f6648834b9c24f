#pragma once
// Runs the points of a sweep on this host, some at a time.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer/files/progress_line.h"
#include "trainer/job/launch_environment.h"
#include "trainer/job/stop_signals.h"
#include "trainer/sweep/point_process.h"
#include "trainer/sweep/standings.h"

namespace trireme::sweep {

/// Points at a time and threads of their ranks.
struct Slots {
  int64_t at_once = 1;
  std::optional<int64_t> cores;  ///< of each point; nullopt: OMP_NUM_THREADS of the environment counts

  /// OMP_NUM_THREADS of each rank of a point; nullopt: that of the environment.
  std::optional<int64_t> threads(int ranks) const;
};
/// `usable_cores`: of this host. `gpus`: points use GPUs.
Slots slots_of(const SweepWhere& where, const std::vector<PointRun>& runs, int usable_cores, bool gpus, const LaunchEnvironment& environment);

enum class SweepEnd : uint8_t {
  kComplete,  ///< nothing is left to be run
  kStopped,   ///< on request, with checkpoints
  kKilled,    ///< by a second request
  kHours,     ///< the hours of the budget are used up
  kFailures,  ///< stop_after_failures was reached
  kBlocked,   ///< other processes run the points that are left
};

/// Says "point 3 (learning_rate=0.001): ...".
using Say = std::function<void(const std::string& line)>;

class Runner {
 public:
  /// `runs` and `stop` must outlive it. `only`: the index of the only point that it runs, as a task of an array, whose other tasks may be running; nullopt:
  /// all. Errors: IoError.
  Runner(const SweepFile& file, const std::vector<PointRun>& runs, Slots slots, const StopRequest& stop, Say say,
         std::optional<size_t> only = std::nullopt);

  /// Starts and watches points until nothing is left to do or a limit is reached. A point that another process runs is left to it.
  /// Errors: IoError; ConfigError if that is the only point.
  SweepEnd run();
  const std::vector<PointHistory>& histories() const { return histories_; }
  std::vector<Standing> standings();

 private:
  void start_points();
  std::optional<size_t> next_point();
  bool may_start() const;
  void start(size_t index);
  void reap();
  void end_of(const PointProcess& process, const PointEnd& end);
  void say_end(const PointProcess& process);
  void forward_requests();
  void show_progress();
  int64_t step_of(size_t index) const;
  std::optional<Score> score_at(size_t index, int64_t until);
  std::string point_text(size_t index) const;

  const SweepFile& file_;
  const std::vector<PointRun>& runs_;
  const Slots slots_;
  const StopRequest& stop_;
  const Say say_;
  SaveRequest save_;
  const std::optional<size_t> only_;
  std::optional<SweepClock> clock_;  ///< nullopt: one of several tasks
  std::vector<PointHistory> histories_;
  std::vector<std::unique_ptr<PointProcess>> running_;
  std::map<std::pair<size_t, int64_t>, std::optional<Score>> scores_;
  std::set<size_t> blocked_;                            ///< points that another process runs
  std::map<size_t, int64_t> kills_;                     ///< of points by signals, in this job
  std::optional<StopRequest::Clock::time_point> told_;  ///< when the points were told to stop
  bool out_of_hours_ = false;
  StopRequest::Clock::time_point next_mark_;
  int64_t shown_ = 0;  ///< steps of all points that the progress line shows
  std::optional<ProgressLine> line_;
};

}  // namespace trireme::sweep
