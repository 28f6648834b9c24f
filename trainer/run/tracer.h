#pragma once
// Chosen steps of a run, watched closely: `train --trace-steps A:B`.
#include <filesystem>
#include <optional>

#include "kernels/core/operation_log.h"
#include "trainer/loop/trace.h"
#include "trainer/loop/trainer.h"
#include "trainer/run/reporter.h"

namespace trireme {

/// Steps from 1, both included.
struct StepRange {
  int64_t first = 1, last = 1;
};
/// "3:5", or "3" for one. Errors: ConfigError; also for more than 100 steps, for a trace is kept in memory until it is written.
StepRange step_range(const std::string& text);
std::string to_string(const StepRange& steps);  ///< "3:5"

/// Collective in every method. On rank 0: a line {"event": "exposed"} in metrics.jsonl for each step; in the end <run.directory>/trace.json with all
/// of them, the first with every operation of kernels/ops, and a table. Between begin() and end() it adds nothing but clock readings to what a rank does.
class Tracer {
 public:
  /// `world`: the one `trainer` was made with, timed by `log`.
  Tracer(Trainer& trainer, CommunicationLog& log, const StepRange& steps, std::filesystem::path run_directory);
  /// Before the step: its clock starts when all ranks are here.
  void begin(int64_t step);
  /// As soon as its figures were read.
  void end(int64_t step);
  /// Ranks leave it together.
  void report(int64_t step, Reporter& reporter);
  /// At the end of a run, which may not have got to the last step; where it has, that is written already.
  void finish(Reporter& reporter);
  bool traces(int64_t step) const { return steps_.first <= step && step <= steps_.last; }

 private:
  void add(int64_t step, const std::vector<std::string>& ranks, Reporter& reporter);

  Trainer& trainer_;
  CommunicationLog& log_;
  StepRange steps_;
  std::filesystem::path run_directory_;
  std::string clock_;                                            ///< of this host since it was started
  StepTrace trace_;                                              ///< of the step under way
  std::optional<OperationLog> kernels_;                          ///< of the first one: thousands of events, alike in every step
  bool detailed_ = false;                                        ///< that one is over
  std::optional<std::chrono::steady_clock::time_point> origin_;  ///< of the first one, on rank 0
  ChromeTrace chrome_;
  std::vector<ExposedTime> sums_;  ///< by rank
  int64_t count_ = 0;              ///< steps in them
  int64_t last_ = 0;               ///< of these steps
  bool written_ = false;
};

}  // namespace trireme
