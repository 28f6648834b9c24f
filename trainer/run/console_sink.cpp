#include "trainer/run/console_sink.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/check.h"

namespace trireme {
namespace {

std::string format(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return text;
}

/// "812", "12.3k", "4.56M".
std::string format_count(double value) {
  if (value < 1e4) return format("%.0f", value);
  if (value < 1e6) return format("%.1fk", value / 1e3);
  return format("%.2fM", value / 1e6);
}

}  // namespace

ConsoleSink::ConsoleSink(int64_t total_steps, bool terminal, std::FILE* out, std::FILE* messages)
    : total_steps_(total_steps), terminal_(terminal), out_(out), messages_(messages) {}

ConsoleSink::~ConsoleSink() { end_progress_line(); }

void ConsoleSink::end_progress_line() {
  if (std::exchange(progress_line_open_, false)) std::fputc('\n', out_);
  std::fflush(out_);
}

void ConsoleSink::write(const Event& event) {
  if (event.kind == "step") step(event);
  if (event.kind == "evaluation") evaluation(event);
  if (event.text.empty()) return;
  end_progress_line();
  std::fprintf(messages_, "%s\n", event.text.c_str());
  std::fflush(messages_);
}

void ConsoleSink::step(const Event& event) {
  constexpr double kSmoothing = 0.1;
  const auto number = [&](const char* key) { return event.fields.at(key).get<double>(); };
  const double seconds = number("step_seconds");
  smoothed_step_seconds_ = smoothed_step_seconds_ == 0 ? seconds : (1 - kSmoothing) * smoothed_step_seconds_ + kSmoothing * seconds;
  std::string line = concat("step ", *event.step, "/", total_steps_);
  line += format("  loss %.4f  grad_norm %.3f  lr %.3g  ", number("loss"), number("grad_norm"), number("learning_rate"));
  line += format_count(number("tokens_per_second")) + " tokens/s";
  if (event.fields.contains("loss_scale")) line += concat("  scale ", event.fields["loss_scale"].get<int64_t>());
  if (!event.fields.at("mfu").is_null()) line += format("  mfu %.1f%%", 100 * number("mfu"));
  line += "  left " + format_duration(smoothed_step_seconds_ * static_cast<double>(total_steps_ - *event.step));
  std::fprintf(out_, terminal_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
  std::fflush(out_);
  progress_line_open_ = terminal_;
}

void ConsoleSink::evaluation(const Event& event) {
  std::string line = concat("step ", *event.step, "/", total_steps_, "  validation loss");
  line += format(" %.4f", event.fields.at("validation_loss").get<double>());
  if (event.fields.contains("validation"))
    for (const auto& [name, loss] : event.fields["validation"].items()) line += "  " + name + format(" %.4f", loss.get<double>());
  end_progress_line();
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::lround(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 60) return format("%llds", whole);
  if (whole < 3600) return format("%lldm%02llds", whole / 60, whole % 60);
  if (whole < 86400) return format("%lldh%02lldm", whole / 3600, whole % 3600 / 60);
  return format("%lldd%02lldh", whole / 86400, whole % 86400 / 3600);
}

}  // namespace trireme
