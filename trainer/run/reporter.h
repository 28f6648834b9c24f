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
#include "trainer/run/event.h"

namespace trireme {

/// Makes events of what happens in a run, and hands them to every sink: metrics.jsonl and the terminal. Only one rank calls open(); without it no call has any
/// effect. Where metrics.jsonl cannot be written a message says so once, and the run goes on.
class Reporter {
 public:
  /// Goes on from metrics.jsonl as it stood after `step`. `environment`: what environment.json says. `forecast`: for the start event, and for the peak
  /// of MFU. `to_terminal`: a person looks at standard output. Errors: IoError.
  void open(const Config& config, const nlohmann::ordered_json& environment, const std::optional<RunForecast>& forecast, int64_t step, int64_t steps,
            bool to_terminal);
  void step(int64_t step, const StepResult& result, double seconds);
  /// `sets`: name and loss of each, where they have names.
  void evaluation(int64_t step, double loss, const std::vector<std::pair<std::string, double>>& sets);
  void saved(const SaveReport& report);
  /// By pipeline rank, at the end of a run that has done `step` steps.
  void memory(int64_t step, const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured);
  /// Beside what happened, at the end: seconds of a step, and bytes of the rank that takes most.
  void forecast(int64_t step, double seconds, double measured_seconds, double bytes, double measured_bytes);
  void message(const std::string& text) { event("", {}, {}, text); }
  /// Parts of an Event.
  void event(const std::string& kind, std::optional<int64_t> step, const nlohmann::ordered_json& fields, const std::string& text = "");
  /// Of the first sink whose events are waiting to be written: why; else empty.
  std::string write_error() const;
  /// What the sinks have written outlives a power cut from here. From any thread.
  void sync() const;

 private:
  void report_write_error();

  std::vector<std::unique_ptr<EventSink>> sinks_;
  int64_t tokens_per_step_ = 0;
  double flops_per_token_ = 0;
  std::optional<double> peak_flops_;
  bool write_error_reported_ = false;
};

}  // namespace trireme
