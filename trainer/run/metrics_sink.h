#pragma once
#include <filesystem>

#include "trainer/run/event.h"

namespace trireme {

/// What metrics.jsonl says about the run so far.
struct MetricsHistory {
  int64_t steps = 0;       ///< number of the last step; 0: none
  int64_t evaluated = 0;   ///< step of the last evaluation; 0: none
  std::string checkpoint;  ///< the last that was saved or resumed from; empty: none
};

/// Appends to metrics.jsonl: one object a line, written at once; numbers that read back to the same bits, null for NaN and infinity. What the disk does not take
/// is kept and tried again with the next line.
class MetricsSink : public EventSink {
 public:
  /// Errors: IoError.
  explicit MetricsSink(std::filesystem::path path);
  ~MetricsSink() override;

  /// {"event": kind, "step": step, ...fields}; a measurement has no "event".
  void write(const Event& event) override;
  std::string write_error() const override { return write_error_; }
  void sync() const override;

  /// Drops the first line of a later step, everything after it, and what a crash left of a last line, so that a run resumed after `step` writes each
  /// step once. Step 0 empties the file. A missing file stays missing.   Errors: IoError.
  static void cut_back(const std::filesystem::path& path, int64_t step);
  /// Of a missing file nothing.   Errors: IoError.
  static MetricsHistory history(const std::filesystem::path& path);
  /// Renames a file that has lines of steps, to the first free name of metrics-1.jsonl, metrics-2.jsonl, ..., which is returned; empty where there is no such
  /// file.   Errors: IoError.
  static std::filesystem::path set_aside(const std::filesystem::path& path);

 private:
  void write_waiting();

  std::filesystem::path path_;
  int file_ = -1;
  int64_t written_ = 0;  ///< bytes of whole lines in the file
  std::string waiting_;  ///< lines that are not
  std::string write_error_;
};

}  // namespace trireme
