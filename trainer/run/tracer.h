#pragma once
// Traces selected steps of a run: `train --trace-steps A:B`.
#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "kernels/core/operation_log.h"
#include "parallel/pipeline/timeline_recorder.h"
#include "trainer/loop/trace.h"
#include "trainer/loop/trainer.h"
#include "trainer/run/reporter.h"

namespace trireme {

/// Steps `first` to `last`, inclusive, counted from 1.
struct StepRange {
  int64_t first = 1, last = 1;
};
/// Parses "3:5", or "3" for one step. Errors: ConfigError; also for more than 100 steps, because a trace is kept in memory until it is written.
StepRange step_range(const std::string& text);
std::string to_string(const StepRange& steps);  ///< "3:5"

/// Every method is collective, begin() and end() over the ranks of an island. Rank 0 writes a line {"event": "exposed"} to metrics.jsonl for each step, and
/// at the end a table and <run.directory>/trace.json with all steps, the first with every operation of kernels/ops. Between begin() and end() the only
/// overhead is reading clocks, or recording events on a GPU.
///
/// On a GPU the times are those of the compute stream. The step before must be finished before begin(), so a traced step begins with an idle device,
/// and the device waits for the batch, which other steps read while the previous one runs.
class Tracer {
 public:
  /// `log` must record the world communicator of `trainer` (timed()).
  Tracer(Trainer& trainer, CommunicationLog& log, const StepRange& steps, std::filesystem::path run_directory);
  /// Call before the step: a barrier of the island, then the clock starts.
  void begin(int64_t step);
  /// Call as soon as the results of the step have been read.
  void end(int64_t step);
  /// True if a step has ended that is not reported.
  bool has_report() const { return !ended_.empty(); }
  /// Gathers and reports the steps that have ended; ends with a barrier. Call it when all islands have ended the same steps.
  void report(Reporter& reporter);
  /// Call at the end of a run: writes the trace unless that was done after the last step to trace.
  void finish(Reporter& reporter);
  bool traces(int64_t step) const { return steps_.first <= step && step <= steps_.last; }

 private:
  void add(int64_t step, const std::vector<std::string>& ranks, Reporter& reporter);

  Trainer& trainer_;
  CommunicationLog& log_;
  StepRange steps_;
  std::filesystem::path run_directory_;
  std::string clock_;                        ///< identifies the monotonic clock of this host
  StepTrace trace_;                          ///< of the current step
  std::map<int64_t, std::string> ended_;     ///< traces of the steps that are not reported, as bytes
  std::optional<DeviceClock> device_clock_;  ///< of the current step, as all that is recorded with it
  std::optional<TimelineRecorder> actions_;
  std::optional<OperationLog> kernels_;                          ///< of the first step only: thousands of operations, the same in every step
  bool detailed_ = false;                                        ///< the first step has been traced
  std::optional<std::chrono::steady_clock::time_point> origin_;  ///< of the first step, on rank 0
  ChromeTrace chrome_;
  std::vector<ExposedTime> sums_;  ///< by rank
  int64_t count_ = 0;              ///< number of steps in sums_
  int64_t last_ = 0;               ///< the last of these steps
  bool written_ = false;
};

}  // namespace trireme
