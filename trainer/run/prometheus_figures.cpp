#include "trainer/run/prometheus_figures.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>

#include "kernels/core/check.h"

namespace trireme {
namespace {

constexpr const char* kPrefix = "trireme_";
constexpr const char* kEvents = "events_total";

std::string escaped(std::string_view label_value) {
  std::string text;
  for (const char c : label_value) {
    if (c == '\n') {
      text += "\\n";
      continue;
    }
    if (c == '"' || c == '\\') text += '\\';
    text += c;
  }
  return text;
}

std::string label_text(std::string_view name, std::string_view value) { return concat(name, "=\"", escaped(value), "\""); }

std::string help_of(const std::string& name) {
  if (name == "step") return "The last completed step.";
  if (name == "run_steps") return "The number of steps of the complete run.";
  if (name == "step_time_seconds") return "When the last step ended, in seconds since 1970.";
  if (name == kEvents) return "Number of events since the start of this process.";
  return concat("The latest ", name, " of metrics.jsonl.");
}

std::string exposition_number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  char digits[32];
  return {digits, std::to_chars(digits, digits + sizeof digits, value).ptr};
}

}  // namespace

PrometheusFigures::PrometheusFigures(std::string_view run, int64_t steps) : run_label_(label_text("run", run)) {
  set("run_steps", static_cast<double>(steps));
}

void PrometheusFigures::set(const std::string& name, double value, std::string_view label, std::string_view label_value) {
  values_[name][label.empty() ? run_label_ : run_label_ + "," + label_text(label, label_value)] = value;
}

void PrometheusFigures::take(const Event& event) {
  if (event.kind.empty()) return;
  const std::lock_guard lock(mutex_);
  ++version_;
  const std::vector<Figure> figures = figures_of(event);
  if (figures.empty()) ++values_[kEvents][run_label_ + "," + label_text("event", event.kind)];
  if (event.kind == "step" && event.step) set("step", static_cast<double>(*event.step));
  if (event.kind == "step" && event.time) set("step_time_seconds", std::chrono::duration<double>(event.time->time_since_epoch()).count());
  for (Figure figure : figures) {
    std::ranges::replace(figure.name, '/', '_');
    set(figure.name, figure.value, figure.part.empty() ? "" : "part", figure.part);
  }
}

std::string PrometheusFigures::text() const {
  const std::lock_guard lock(mutex_);
  std::string text;
  for (const auto& [name, values] : values_) {
    text += concat("# HELP ", kPrefix, name, " ", help_of(name), "\n");
    text += concat("# TYPE ", kPrefix, name, name == kEvents ? " counter\n" : " gauge\n");
    for (const auto& [labels, value] : values) text += concat(kPrefix, name, "{", labels, "} ", exposition_number(value), "\n");
  }
  return text;
}

uint64_t PrometheusFigures::version() const {
  const std::lock_guard lock(mutex_);
  return version_;
}

}  // namespace trireme
