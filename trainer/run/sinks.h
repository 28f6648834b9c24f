#pragma once
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "trainer/config/config.h"
#include "trainer/run/change.h"
#include "trainer/run/console_sink.h"
#include "trainer/run/event.h"

namespace trireme {

/// What the sinks of a run are made from.
struct SinkSettings {
  const Config& config;  ///< resolved
  const RunHistory& history;
  int64_t steps;        ///< of the complete run
  TerminalWidth width;  ///< of the terminal that standard output is; else empty
  std::FILE* out;       ///< where measurements are printed
  std::FILE* messages;  ///< where texts are printed
};

/// The sinks of a run. What happens when one cannot be opened or fails depends on whether it is required: a run without its metrics.jsonl is not worth
/// its time, a run without one of its optional sinks is. An optional sink that fails is reported once, and the run continues.
class Sinks {
 public:
  /// Opens every sink that the configuration asks for; the table in sinks.cpp lists them. Returns a message for each optional one that could not be
  /// opened.
  /// Errors: those of a required sink.
  std::vector<std::string> open(const SinkSettings& settings);
  /// `name`: how messages call it. A sink that is not required must not be worth ending a run.
  void add(std::string name, bool required, std::unique_ptr<EventSink> sink);

  /// Returns a message for each optional sink that has failed and gets no more events.
  std::vector<std::string> write(const Event& event);
  void evaluating(int64_t step, int64_t done, int64_t batches, double seconds);
  void histograms(int64_t step, const std::vector<Histogram>& histograms);  ///< EventSink::histograms
  void finish();                                                            ///< EventSink::finish
  /// A message for each sink whose EventSink::write_error is new.
  std::vector<std::string> new_errors();
  /// EventSink::write_error of the first required sink that has one; else empty.
  std::string write_error() const;
  /// Flushes all sinks to stable storage. Thread-safe.
  void sync() const;

 private:
  struct Entry {
    std::string name;
    bool required;
    std::unique_ptr<EventSink> sink;
    bool failed = false;    ///< gets no more events
    bool reported = false;  ///< the current write_error has been reported
  };
  std::vector<Entry> entries_;
};

}  // namespace trireme
