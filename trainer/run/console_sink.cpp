#include "trainer/run/console_sink.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/plain_zero.h"
#include "trainer/files/printable.h"
#include "trainer/run/sinks.h"

namespace trireme {
namespace {

std::string format(const char* pattern, auto... values) {
  char text[256];
  std::snprintf(text, sizeof text, pattern, values...);
  return plain_zero(text);
}

/// "812", "12.3k", "4.56M".
std::string format_count(double value) {
  if (value < 1e4) return format("%.0f", value);
  if (value < 1e6) return format("%.1fk", value / 1e3);
  return format("%.2fM", value / 1e6);
}

}  // namespace

ConsoleSink::ConsoleSink(int64_t total_steps, std::optional<int64_t> print_every, TerminalWidth width, std::FILE* out, std::FILE* messages)
    : total_steps_(total_steps), print_every_(print_every), width_(std::move(width)), out_(out), messages_(messages) {}

ConsoleSink::~ConsoleSink() { end_progress_line(); }

void ConsoleSink::end_progress_line() {
  if (waiting_) draw(*waiting_, true);
  if (!progress_.empty()) std::fputc('\n', out_);
  progress_.keep();
  std::fflush(out_);
}

void ConsoleSink::write(const Event& event) {
  if (event.kind == "step") step(event);
  if (event.kind == "evaluation") evaluation(event);
  if (event.text.empty()) return;
  end_progress_line();
  const bool begins_log = event.kind == "start" && event.time;
  const std::string when = begins_log ? concat(local_date(*event.time), " ", local_time(*event.time), "  ") : "";
  if (begins_log && width_) last_date_ = local_date(*event.time);  // both streams are one terminal
  std::fprintf(messages_, "%s%s\n", when.c_str(), printable(event.text).c_str());
  std::fflush(messages_);
}

void ConsoleSink::step(const Event& event) {
  constexpr double kSmoothing = 0.1;
  const auto number = [&](const char* key) { return event.fields.at(key).get<double>(); };
  const double seconds = number("step_seconds");
  // Without the first step, which also warms up.
  smoothed_step_seconds_ = ++steps_seen_ <= 2 ? seconds : (1 - kSmoothing) * smoothed_step_seconds_ + kSmoothing * seconds;
  curve_.add(*event.step, number("loss"));
  if (!width_ && !is_printed(event)) return;
  std::vector<ProgressField> fields = {
      {step_text(*event.step), 9},
      {format("loss %.4f", number("loss")), 8},
      {format("grad_norm %.3f", number("grad_norm")), 4},
      {format("lr %.3g", number("learning_rate")), 1},
      {format_count(number("tokens_per_second")) + " tokens/s", 5},
  };
  if (event.fields.contains("loss_scale")) fields.push_back({concat("scale ", event.fields["loss_scale"].get<int64_t>()), 0});
  if (!event.fields.at("mfu").is_null()) fields.push_back({format("mfu %.1f%%", 100 * number("mfu")), 3});
  fields.push_back({"left " + format_duration(smoothed_step_seconds_ * static_cast<double>(total_steps_ - *event.step)), 7});
  const Shown shown{aligned(std::move(fields)), static_cast<double>(*event.step) / static_cast<double>(total_steps_), event.time};
  constexpr auto kKept = std::chrono::seconds(10);
  if (width_ && !last_line_) last_line_ = event.time;
  if (width_ && event.time && *event.time - *last_line_ >= kKept) {
    draw(shown, false);
    std::fputc('\n', out_);
    progress_.keep();
    last_line_ = event.time;
    last_drawn_.reset();  // the progress line follows at once
  }
  show_progress(shown);
}

std::string ConsoleSink::step_text(int64_t step) const {
  const std::string total = std::to_string(total_steps_), done = std::to_string(step);
  return concat("step ", done, "/", total, std::string(total.size() - std::min(total.size(), done.size()), ' '));
}

std::vector<ProgressField> ConsoleSink::aligned(std::vector<ProgressField> fields) {
  for (ProgressField& field : fields) {
    size_t& width = widths_[static_cast<size_t>(field.importance)];
    width = std::max(width, field.text.size());
    field.text.resize(width, ' ');
  }
  return fields;
}

void ConsoleSink::show_progress(const Shown& shown) {
  if (!width_) return print_line(shown.time, fitting_line(shown.fields, std::string::npos));
  constexpr auto kPause = std::chrono::milliseconds(100);  // between two drawings, whatever is shown last
  if (shown.time && last_drawn_ && *shown.time - *last_drawn_ < kPause)
    waiting_ = shown;
  else
    draw(shown, true);
}

void ConsoleSink::draw(const Shown& shown, bool with_bar) {
  constexpr size_t kBar = 10, kWidestBar = 40;
  const size_t columns = width_();
  std::vector<ProgressField> fields = shown.fields;
  if (shown.time) fields.insert(fields.begin(), {local_time(*shown.time), 2});
  const std::string bar = progress_bar(shown.share, kBar);
  if (with_bar) fields.push_back({bar, 6});
  std::string line = fitting_line(std::move(fields), columns - 1);
  if (line.ends_with(bar)) line.replace(line.size() - kBar, kBar, progress_bar(shown.share, std::min(kWidestBar, kBar + columns - 1 - line.size())));
  std::fputs(progress_.replace(line, columns).c_str(), out_);
  std::fflush(out_);
  last_drawn_ = shown.time;
  waiting_.reset();
}

void ConsoleSink::finish() {
  if (!width_) return;
  end_progress_line();
  std::fputs(curve_.text(width_() - 1).c_str(), out_);
  std::fflush(out_);
}

/// Steps may take from milliseconds to minutes: a number of lines alone would leave the log of a long run silent for hours.
bool ConsoleSink::is_printed(const Event& step) const {
  const int64_t every = print_every_.value_or(automatic_print_every(total_steps_));
  if (steps_seen_ == 1 || *step.step % every == 0 || *step.step == total_steps_) return true;
  return !print_every_ && step.time && last_line_ && *step.time - *last_line_ >= std::chrono::minutes(1);
}

void ConsoleSink::print_line(std::optional<WallClock::time_point> time, const std::string& line) {
  std::string when;
  if (time) {
    const std::string date = local_date(*time);
    if (date != std::exchange(last_date_, date)) when = date + " ";
    when += local_time(*time) + "  ";
  }
  end_progress_line();
  std::fprintf(out_, "%s%s\n", when.c_str(), printable(line).c_str());
  std::fflush(out_);
  last_line_ = time;
}

void ConsoleSink::evaluating(int64_t step, int64_t done, int64_t batches, double seconds) {
  constexpr double kPause = 0.2, kLong = 10;
  if (done == 0) {
    evaluation_shown_ = 0;
    return;
  }
  if (width_ ? seconds < evaluation_shown_ + kPause : seconds < kLong || evaluation_shown_ > 0) return;
  evaluation_shown_ = seconds;
  const double left = seconds / static_cast<double>(done) * static_cast<double>(batches - done);
  show_progress({.fields = {{step_text(step), 9},
                            {concat("evaluation batch ", done, " of ", batches), 8},
                            {"in " + format_duration(seconds), 1},
                            {"left " + format_duration(left), 7}},
                 .share = static_cast<double>(done) / static_cast<double>(batches),
                 .time = WallClock::now()});
}

void ConsoleSink::evaluation(const Event& event) {
  const auto loss = event.fields.at("validation_loss").get<double>();
  curve_.add_validation(*event.step, loss);
  std::string line = concat(step_text(*event.step), "  validation loss", format(" %.4f", loss));
  if (event.fields.contains("validation"))
    for (const auto& [name, loss_of_set] : event.fields["validation"].items()) line += "  " + name + format(" %.4f", loss_of_set.get<double>());
  print_line(event.time, line);
}

std::string fitting_line(std::vector<ProgressField> fields, size_t columns) {
  for (;;) {
    std::string line;
    for (const ProgressField& field : fields) line += (line.empty() ? "" : "  ") + field.text;
    line.erase(line.find_last_not_of(' ') + 1);
    if (line.size() <= columns || fields.size() == 1) return line;
    fields.erase(std::ranges::min_element(fields, {}, &ProgressField::importance));
  }
}

std::string progress_bar(double share, size_t width) {
  const size_t inside = width - 2, full = static_cast<size_t>(std::clamp(share, 0.0, 1.0) * static_cast<double>(inside));
  std::string bar = "[" + std::string(full, '=') + std::string(inside - full, ' ') + "]";
  if (full < inside) bar[1 + full] = '>';
  return bar;
}

int64_t automatic_print_every(int64_t steps) {
  constexpr int64_t kLines = 1000;
  for (int64_t power = 1;; power *= 10)
    for (const int64_t every : {power, 2 * power, 5 * power})
      if (every >= steps / kLines + (steps % kLines != 0 ? 1 : 0)) return every;
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::lround(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 60) return format("%llds", whole);
  if (whole < 3600) return format("%lldm%02llds", whole / 60, whole % 60);
  if (whole < 86400) return format("%lldh%02lldm", whole / 3600, whole % 3600 / 60);
  return format("%lldd%02lldh", whole / 86400, whole % 86400 / 3600);
}

std::unique_ptr<EventSink> make_console_sink(const SinkSettings& settings) {
  return std::make_unique<ConsoleSink>(settings.steps, settings.config.observe.print_every, settings.width, settings.out, settings.messages);
}

}  // namespace trireme
