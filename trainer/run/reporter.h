#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/checkpoint/checkpoint.h"
#include "trainer/loop/memory.h"
#include "trainer/loop/trainer.h"
#include "trainer/plan/run_forecast.h"
#include "trainer/run/metrics.h"

namespace trireme {

/// What a run says, to metrics.jsonl and to people. One rank speaks for all: until open() every call is silent. Where metrics.jsonl cannot be written it says so
/// once, and goes on.
class Reporter {
 public:
  /// Goes on from metrics.jsonl as it stood after `step`. `environment`: what environment.json says. `forecast`: for the start event, and for the peak
  /// of MFU. Errors: IoError.
  void open(const Config& config, const nlohmann::ordered_json& environment, const std::optional<RunForecast>& forecast, int64_t step, int64_t steps);
  void step(int64_t step, const StepResult& result, double seconds);
  /// `sets`: name and loss of each, where they have names.
  void evaluation(int64_t step, double loss, const std::vector<std::pair<std::string, double>>& sets);
  void saved(const SaveReport& report);
  /// By pipeline rank, at the end of a run that has done `step` steps.
  void memory(int64_t step, const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured);
  /// Beside what happened, at the end: seconds of a step, and bytes of the rank that takes most.
  void forecast(int64_t step, double seconds, double measured_seconds, double bytes, double measured_bytes);
  void message(const std::string& text);
  /// A line of metrics.jsonl.
  void event(const std::string& kind, const nlohmann::ordered_json& fields);
  /// Lines of metrics.jsonl that are still not written: why; else empty.
  std::string trouble() const { return metrics_ ? metrics_->trouble() : ""; }
  /// metrics.jsonl outlives a power cut from here. From any thread.
  void sync() const;

 private:
  void look_for_trouble();

  std::unique_ptr<MetricsWriter> metrics_;
  std::unique_ptr<ConsoleReporter> console_;
  int64_t tokens_per_step_ = 0;
  double flops_per_token_ = 0;
  std::optional<double> peak_flops_;
  bool told_trouble_ = false;
};

}  // namespace trireme
