#pragma once
#include <filesystem>
#include <map>
#include <vector>

#include "trainer/files/append_file.h"
#include "trainer/run/event.h"

namespace trireme {

/// The history of a run according to metrics.jsonl.
struct MetricsHistory {
  int64_t steps = 0;       ///< number of the last step; 0: none
  int64_t evaluated = 0;   ///< step of the last evaluation; 0: none
  double loss = 0;         ///< its validation loss
  std::string checkpoint;  ///< the last that was saved or resumed from; empty: none
};

/// How the steps of earlier jobs were split (events "rebalance", and "rebalance_again" of a resumed job).
struct LoggedSplits {
  int64_t last_step = 0;                           ///< the last that was trained with resilience.rebalance
  std::map<int64_t, std::vector<int>> after_step;  ///< MicroBatchSplit
};

/// The order in which gradients arrived, with training.asynchronous: by step, from 1, the workers of the gradients of its update.
using LoggedOrder = std::map<int64_t, std::vector<int>>;

/// Appends to metrics.jsonl: one object per line, written immediately; numbers read back to the same bits, NaN and infinity are null. Lines that
/// cannot be written are buffered and retried with the next line.
class MetricsSink : public EventSink {
 public:
  /// Errors: IoError.
  explicit MetricsSink(const std::filesystem::path& path) : file_(path) {}

  /// {"event": kind, "step": step, ...fields, "time": UTC}; a measurement has no "event".
  void write(const Event& event) override;
  std::string write_error() const override { return file_.error(); }
  void sync() const override { file_.sync(); }

  /// Truncates the file before the first line of a later step, and removes an incomplete last line, so that a run resumed after `step` writes each
  /// step once. Step 0 empties the file. Does not create a missing file.   Errors: IoError.
  static void truncate_after(const std::filesystem::path& path, int64_t step);
  /// Reads the file; a missing file gives an empty history.   Errors: IoError.
  static MetricsHistory history(const std::filesystem::path& path);
  /// What truncate_after() would remove: the number of steps, and the time of the last of these lines.   Errors: IoError.
  struct Discarded {
    int64_t steps = 0;
    std::string until;  ///< empty: no line with a time
  };
  static Discarded lines_after(const std::filesystem::path& path, int64_t step);
  /// The splits of micro-batches after `step`, by the step after which each took force, and the last step. A job that ended while it repeated steps
  /// has logged those that it had still to repeat.   Errors: IoError.
  static LoggedSplits splits_after(const std::filesystem::path& path, int64_t step);
  /// The order of arrivals in the steps after `step`. A job that ended while it repeated steps has logged what it had still to repeat (event
  /// "arrivals").
  /// Errors: IoError.
  static LoggedOrder order_after(const std::filesystem::path& path, int64_t step);
  /// Renames a file that contains steps to the first free name of metrics-1.jsonl, metrics-2.jsonl, ..., and returns that name; empty if there is no
  /// such file.   Errors: IoError.
  static std::filesystem::path rename_existing(const std::filesystem::path& path);

 private:
  AppendFile file_;
};

}  // namespace trireme
