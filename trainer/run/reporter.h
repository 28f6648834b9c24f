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
#include "trainer/run/change.h"
#include "trainer/run/event.h"
#include "trainer/run/sinks.h"

namespace trireme {

/// Turns the progress of a run into events and passes them to every sink. Only one rank calls open(). On the others no call has an effect, except that
/// the first rank of each further island keeps the events on which its island alone decides, for that rank. If a sink cannot write, one message
/// reports it and the run continues.
class Reporter {
 public:
  /// Opens the sinks of `config` (resolved) and counts tokens on from `history`. `environment`: contents of environment.json. `forecast`: for the
  /// start event, and for the peak FLOP/s of MFU. `width`, `messages`: SinkSettings.
  /// Errors: IoError.
  void open(const Config& config, const nlohmann::ordered_json& environment, const std::optional<RunForecast>& forecast, const RunHistory& history,
            int64_t steps, TerminalWidth width = {}, std::FILE* messages = stderr);
  /// Adds a required sink to those of open() (Sinks::add).
  void add_sink(std::string name, std::unique_ptr<EventSink> sink) { sinks_.add(std::move(name), true, std::move(sink)); }
  /// Keeps rejected, anomalous and target-less steps from now on, instead of having no effect.
  void keep_island_events() { kept_ = nlohmann::ordered_json::array(); }
  /// Those since the last call, for report_island_events() on the rank that has called open().
  nlohmann::ordered_json take_island_events();
  void report_island_events(int64_t island, const nlohmann::ordered_json& events);
  /// `more`: an object with further fields. `padding`: StepResult::padding of all steps since the checkpoint in `history`, this one included.
  void step(int64_t step, const StepResult& result, double seconds, const nlohmann::ordered_json& more = nlohmann::ordered_json::object(),
            int64_t padding = 0);
  /// An anomalous step: what was done with it, further fields, and the text of the line after "step 7: anomaly: "; empty: no
  /// line.
  void anomaly(int64_t step, const StepResult& result, const StepLimits& limits, const std::string& action, const nlohmann::ordered_json& more,
               const std::string& text);
  /// EventSink::evaluating.
  void evaluating(int64_t step, int64_t done, int64_t batches, double seconds);
  /// `sets`: name and loss of each validation set that has a name.
  void evaluation(int64_t step, double loss, const std::vector<std::pair<std::string, double>>& sets);
  void histograms(int64_t step, const std::vector<Histogram>& histograms) { sinks_.histograms(step, histograms); }
  void saved(const SaveReport& report);
  /// Memory by pipeline rank, at the end of a run after `step` steps.
  void memory(int64_t step, const std::vector<RankMemory>& forecast, const std::vector<RankMemory>& measured);
  /// Forecast and measurement at the end of a run: seconds per step, and peak bytes of the rank with the highest use.
  void forecast(int64_t step, double seconds, double measured_seconds, double bytes, double measured_bytes);
  /// EventSink::finish.
  void finish();
  void message(const std::string& text) { event("", {}, {}, text); }
  /// Sends an Event with these members.
  void event(const std::string& kind, std::optional<int64_t> step, const nlohmann::ordered_json& fields, const std::string& text = "");
  std::string write_error() const { return sinks_.write_error(); }  ///< Sinks::write_error
  void sync() const { sinks_.sync(); }                              ///< Sinks::sync

 private:
  void write(const Event& event);
  void write_of_island(int64_t island, const std::string& kind, int64_t step, nlohmann::ordered_json fields, const std::string& text);

  Sinks sinks_;
  std::optional<nlohmann::ordered_json> kept_;  ///< a list of [kind, step, fields, text]
  int64_t positions_per_step_ = 0;
  bool packs_ = false, balances_ = false, has_islands_ = false, is_private_ = false;
  RunHistory history_;
  double flops_per_token_ = 0;
  std::optional<double> peak_flops_;
};

}  // namespace trireme
