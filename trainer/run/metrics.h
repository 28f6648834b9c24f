#pragma once
// What a run says while it trains: metrics.jsonl for programs, lines on the terminal or in a log for people. Both on rank 0 only.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace trireme {

struct StepMetrics {
  int64_t step = 0;      ///< from 1
  double loss = 0;       ///< mean over the global batch's valid tokens, nats, before the update
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  int64_t tokens = 0;  ///< since the start of training
  double step_seconds = 0;
  double tokens_per_second = 0;
  double model_tflops = 0;
  std::optional<double> mfu;               ///< where the peak is known: of a GPU's type, or by plan.cluster
  std::optional<int64_t> loss_scale = {};  ///< where it is dynamic
};

/// What a metrics.jsonl tells of the run before.
struct MetricsHistory {
  int64_t steps = 0;       ///< the last that was done; 0: none
  std::string checkpoint;  ///< the last that was saved or resumed from; empty: none
};

/// Appends to metrics.jsonl: one object a line, written at once; numbers that read back to the same bits, null for NaN and infinity. What the disk does not take
/// is kept and tried again with the next line.
class MetricsWriter {
 public:
  /// Errors: IoError.
  explicit MetricsWriter(std::filesystem::path path);
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  /// {"event": kind, ...}; "start" opens a file.
  void event(const std::string& kind, const nlohmann::ordered_json& fields);
  void step(const StepMetrics& metrics);
  /// `sets`: name and loss of each validation set, where they have names.
  void evaluation(int64_t step, double validation_loss, const std::vector<std::pair<std::string, double>>& sets = {});
  /// Why lines are waiting for room; empty: all are written.
  const std::string& trouble() const { return trouble_; }
  /// What is written outlives a power cut. From any thread.
  void sync() const;

  /// Drops the first line of a later step, everything after it, and what a crash left of a last line, so that a run resumed after `step` writes each
  /// step once. Step 0 empties the file. A missing file stays missing.   Errors: IoError.
  static void cut_back(const std::filesystem::path& path, int64_t step);
  /// Of a missing file nothing.   Errors: IoError.
  static MetricsHistory history(const std::filesystem::path& path);
  /// Renames a file that tells of steps, to the first free name of metrics-1.jsonl, metrics-2.jsonl, ..., which is returned; empty where there is no such file.
  /// Errors: IoError.
  static std::filesystem::path set_aside(const std::filesystem::path& path);
  /// The step of the last evaluation written there; 0 where there is none.   Errors: IoError.
  static int64_t last_evaluation(const std::filesystem::path& path);

 private:
  void write(const nlohmann::ordered_json& line);

  std::filesystem::path path_;
  int file_ = -1;
  int64_t written_ = 0;  ///< bytes of whole lines in the file
  std::string waiting_;  ///< lines that are not
  std::string trouble_;
};

/// For people. On a terminal the last line shows the step, loss, throughput and time left, rewritten in place; a log gets a plain line a step.
/// Steps go to `out`, messages to `messages`.
class ConsoleReporter {
 public:
  ConsoleReporter(int64_t total_steps, bool terminal, std::FILE* out = stdout, std::FILE* messages = stderr);
  ~ConsoleReporter();
  ConsoleReporter(const ConsoleReporter&) = delete;
  ConsoleReporter& operator=(const ConsoleReporter&) = delete;

  void step(const StepMetrics& metrics);
  void evaluation(int64_t step, double validation_loss, const std::vector<std::pair<std::string, double>>& sets = {});
  void message(const std::string& text);

 private:
  void end_progress_line();

  int64_t total_steps_;
  bool terminal_;
  std::FILE* out_;
  std::FILE* messages_;
  double smoothed_step_seconds_ = 0;  ///< 0 before the first step
  bool progress_line_open_ = false;
};

/// "59s", "4m05s", "3h07m", "2d04h".
std::string format_duration(double seconds);

}  // namespace trireme
