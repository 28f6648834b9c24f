#pragma once
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "trainer/run/event.h"

namespace trireme {

/// The latest figures of a run in Prometheus' text exposition format, version 0.0.4. Thread-safe: the run takes events, another thread reads the text.
///
/// Each number of a measurement (figures_of) is a gauge trireme_NAME with the labels `run` and, if it has one, `part`. Other events are counted in
/// trireme_events_total.
class PrometheusFigures {
 public:
  /// `run`: run.name. `steps`: of the complete run.
  PrometheusFigures(std::string_view run, int64_t steps);
  void take(const Event& event);
  std::string text() const;
  /// Increases with every change.
  uint64_t version() const;

 private:
  void set(const std::string& name, double value, std::string_view label = {}, std::string_view label_value = {});

  const std::string run_label_;  ///< run="NAME"
  mutable std::mutex mutex_;
  std::map<std::string, std::map<std::string, double>> values_;  ///< by name and by labels
  uint64_t version_ = 0;
};

}  // namespace trireme
