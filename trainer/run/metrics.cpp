#include "trainer/run/metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <sstream>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/checkpoint/checkpoint.h"
#include "trainer/files/durable_file.h"

namespace trireme {

using nlohmann::ordered_json;

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

std::string string_or_empty(const ordered_json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

}  // namespace

MetricsWriter::MetricsWriter(std::filesystem::path path) : path_(std::move(path)) {
  check_replaceable(path_);  // a pipe without a reader would be waited for
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  if (file_ < 0 && errno == ELOOP) throw IoError(concat("cannot write ", path_.string(), ": is a symbolic link; expected the file itself"));
  if (file_ < 0) throw IoError(concat("cannot write ", path_.string(), ": ", std::strerror(errno)));
  written_ = ::lseek(file_, 0, SEEK_END);
}

MetricsWriter::~MetricsWriter() { ::close(file_); }

void MetricsWriter::write(const ordered_json& line) {
  // Shortest form that reads back to the same bits; NaN and infinity become null.
  waiting_ += line.dump() + "\n";
  size_t done = 0;
  while (done < waiting_.size()) {
    const ssize_t count = ::pwrite(file_, waiting_.data() + done, waiting_.size() - done, written_ + static_cast<int64_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  trouble_ = done < waiting_.size() ? concat("cannot write ", path_.string(), ": ", std::strerror(errno)) : "";
  const size_t whole = done == 0 ? 0 : waiting_.rfind('\n', done - 1) + 1;
  written_ += static_cast<int64_t>(whole);
  waiting_.erase(0, whole);
  if (done > whole && ::ftruncate(file_, written_) != 0) trouble_ = concat("cannot cut back ", path_.string(), ": ", std::strerror(errno));
}

void MetricsWriter::sync() const { ::fdatasync(file_); }

void MetricsWriter::event(const std::string& kind, const ordered_json& fields) {
  ordered_json line = {{"event", kind}};
  if (!fields.is_null()) line.update(fields);
  write(line);
}

void MetricsWriter::step(const StepMetrics& metrics) {
  ordered_json line = {{"step", metrics.step},
                       {"loss", metrics.loss},
                       {"grad_norm", metrics.grad_norm},
                       {"learning_rate", metrics.learning_rate},
                       {"tokens", metrics.tokens},
                       {"step_seconds", metrics.step_seconds},
                       {"tokens_per_second", metrics.tokens_per_second},
                       {"model_tflops", metrics.model_tflops},
                       {"mfu", metrics.mfu ? ordered_json(*metrics.mfu) : ordered_json(nullptr)}};
  if (metrics.loss_scale) line["loss_scale"] = *metrics.loss_scale;
  write(line);
}

void MetricsWriter::evaluation(int64_t step, double validation_loss, const std::vector<std::pair<std::string, double>>& sets) {
  ordered_json line = {{"step", step}, {"validation_loss", validation_loss}};
  for (const auto& [name, loss] : sets) line["validation"][name] = loss;
  write(line);
}

MetricsHistory MetricsWriter::history(const std::filesystem::path& path) {
  MetricsHistory history;
  if (!std::filesystem::exists(path)) return history;
  std::istringstream text(read_text(path));
  for (std::string line; std::getline(text, line);) {
    const ordered_json value = ordered_json::parse(line, nullptr, false);
    if (!value.is_object()) continue;  // torn
    const std::string event = string_or_empty(value, "event");
    const int64_t step = value.contains("step") && value["step"].is_number_integer() ? value["step"].get<int64_t>() : 0;
    if (event.empty() && value.contains("loss")) history.steps = step;
    if (event == "checkpoint") history.checkpoint = string_or_empty(value, "checkpoint");
    if (event == "start" && step > 0) history.checkpoint = checkpoint_name(step);
  }
  return history;
}

std::filesystem::path MetricsWriter::set_aside(const std::filesystem::path& path) {
  if (history(path).steps == 0) return {};
  std::filesystem::path free;
  for (int n = 1; free.empty() || std::filesystem::exists(std::filesystem::symlink_status(free)); ++n)
    free = path.parent_path() / concat(path.stem().string(), "-", n, path.extension().string());
  rename_durably(path, free);
  return free;
}

int64_t MetricsWriter::last_evaluation(const std::filesystem::path& path) {
  int64_t step = 0;
  if (!std::filesystem::exists(path)) return step;
  std::istringstream text(read_text(path));
  for (std::string line; std::getline(text, line);) {
    const ordered_json value = ordered_json::parse(line, nullptr, false);
    if (value.is_object() && value.contains("validation_loss")) step = value.value("step", int64_t{0});
  }
  return step;
}

void MetricsWriter::cut_back(const std::filesystem::path& path, int64_t step) {
  if (!std::filesystem::exists(path)) return;
  const std::string text = step > 0 ? read_text(path) : "";
  std::string kept;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == std::string::npos) break;  // torn
    const ordered_json line =
        ordered_json::parse(text.begin() + static_cast<ptrdiff_t>(begin), text.begin() + static_cast<ptrdiff_t>(end), nullptr, false);
    if (line.is_object()) {
      const auto found = line.find("step");
      if (found != line.end() && found->is_number_integer() && found->get<int64_t>() > step) break;
      kept.append(text, begin, end + 1 - begin);
    }
    begin = end + 1;
  }
  write_durably(path, kept);
}

ConsoleReporter::ConsoleReporter(int64_t total_steps, bool terminal, std::FILE* out, std::FILE* messages)
    : total_steps_(total_steps), terminal_(terminal), out_(out), messages_(messages) {}

ConsoleReporter::~ConsoleReporter() { end_progress_line(); }

void ConsoleReporter::end_progress_line() {
  if (std::exchange(progress_line_open_, false)) std::fputc('\n', out_);
  std::fflush(out_);
}

void ConsoleReporter::step(const StepMetrics& metrics) {
  constexpr double kSmoothing = 0.1;
  smoothed_step_seconds_ =
      smoothed_step_seconds_ == 0 ? metrics.step_seconds : (1 - kSmoothing) * smoothed_step_seconds_ + kSmoothing * metrics.step_seconds;
  const double left = smoothed_step_seconds_ * static_cast<double>(total_steps_ - metrics.step);
  std::string line = format("step %lld/%lld  loss %.4f  grad_norm %.3f  lr %.3g  ", static_cast<long long>(metrics.step),
                            static_cast<long long>(total_steps_), metrics.loss, metrics.grad_norm, metrics.learning_rate) +
                     format_count(metrics.tokens_per_second) + " tokens/s";
  if (metrics.loss_scale) line += format("  scale %lld", static_cast<long long>(*metrics.loss_scale));
  if (metrics.mfu) line += format("  mfu %.1f%%", 100 * *metrics.mfu);
  line += "  left " + format_duration(left);
  if (terminal_) {
    std::fprintf(out_, "\r%s\x1b[K", line.c_str());
    progress_line_open_ = true;
  } else {
    std::fprintf(out_, "%s\n", line.c_str());
  }
  std::fflush(out_);
}

void ConsoleReporter::evaluation(int64_t step, double validation_loss, const std::vector<std::pair<std::string, double>>& sets) {
  end_progress_line();
  std::string line =
      format("step %lld/%lld  validation loss %.4f", static_cast<long long>(step), static_cast<long long>(total_steps_), validation_loss);
  for (const auto& [name, loss] : sets) line += "  " + name + format(" %.4f", loss);
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

void ConsoleReporter::message(const std::string& text) {
  end_progress_line();
  std::fprintf(messages_, "%s\n", text.c_str());
  std::fflush(messages_);
}

std::string format_duration(double seconds) {
  const auto whole = static_cast<long long>(std::lround(std::clamp(seconds, 0.0, 1e9)));
  if (whole < 60) return format("%llds", whole);
  if (whole < 3600) return format("%lldm%02llds", whole / 60, whole % 60);
  if (whole < 86400) return format("%lldh%02lldm", whole / 3600, whole % 3600 / 60);
  return format("%lldd%02lldh", whole / 86400, whole % 86400 / 3600);
}

}  // namespace trireme
