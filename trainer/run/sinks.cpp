#include "trainer/run/sinks.h"

#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"

namespace trireme {

// Each is defined in the file of its sink, and returns null if the configuration does not ask for it.
std::unique_ptr<EventSink> make_metrics_sink(const SinkSettings& settings);
std::unique_ptr<EventSink> make_console_sink(const SinkSettings& settings);
std::unique_ptr<EventSink> make_tensorboard_sink(const SinkSettings& settings);
std::unique_ptr<EventSink> make_prometheus_server_sink(const SinkSettings& settings);
std::unique_ptr<EventSink> make_prometheus_file_sink(const SinkSettings& settings);

namespace {

/// Every sink that a run can have, in the order in which they get an event.
constexpr struct {
  const char* name;
  bool required;
  std::unique_ptr<EventSink> (*make)(const SinkSettings&);
} kSinks[] = {
    {"metrics.jsonl", true, make_metrics_sink},
    {"terminal", true, make_console_sink},
    {"observe.tensorboard", false, make_tensorboard_sink},
    {"observe.prometheus.port", false, make_prometheus_server_sink},
    {"observe.prometheus.textfile", false, make_prometheus_file_sink},
};

}  // namespace

std::vector<std::string> Sinks::open(const SinkSettings& settings) {
  std::vector<std::string> messages;
  for (const auto& [name, required, make] : kSinks) {
    try {
      if (std::unique_ptr<EventSink> sink = make(settings)) add(name, required, std::move(sink));
    } catch (const std::exception& error) {
      if (required) throw;
      messages.push_back(concat("warning: ", name, ": ", printable(error), "; the run continues without it"));
    }
  }
  return messages;
}

void Sinks::add(std::string name, bool required, std::unique_ptr<EventSink> sink) {
  entries_.push_back({std::move(name), required, std::move(sink)});
}

std::vector<std::string> Sinks::write(const Event& event) {
  std::vector<std::string> messages;
  for (Entry& entry : entries_) {
    if (entry.failed) continue;
    try {
      entry.sink->write(event);
    } catch (const std::exception& error) {
      if (entry.required) throw;
      entry.failed = true;
      messages.push_back(concat("warning: ", entry.name, ": ", printable(error), "; the run continues without it"));
    }
  }
  return messages;
}

void Sinks::evaluating(int64_t step, int64_t done, int64_t batches, double seconds) {
  for (const Entry& entry : entries_)
    if (!entry.failed) entry.sink->evaluating(step, done, batches, seconds);
}

void Sinks::histograms(int64_t step, const std::vector<Histogram>& histograms) {
  for (const Entry& entry : entries_)
    if (!entry.failed) entry.sink->histograms(step, histograms);
}

void Sinks::finish() {
  for (const Entry& entry : entries_)
    if (!entry.failed) entry.sink->finish();
}

std::vector<std::string> Sinks::new_errors() {
  std::vector<std::string> messages;
  for (Entry& entry : entries_) {
    const std::string error = entry.sink->write_error();
    if (!error.empty() && !entry.reported)
      messages.push_back(entry.required
                             ? error + "; its lines are buffered until there is space"
                             : concat("warning: ", entry.name, ": ", error, "; the run continues, and what could not be written is tried again"));
    entry.reported = !error.empty();
  }
  return messages;
}

std::string Sinks::write_error() const {
  for (const Entry& entry : entries_)
    if (const std::string error = entry.sink->write_error(); entry.required && !error.empty()) return error;
  return "";
}

void Sinks::sync() const {
  for (const Entry& entry : entries_) entry.sink->sync();
}

}  // namespace trireme
