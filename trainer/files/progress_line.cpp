#include "trainer/files/progress_line.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/files/printable.h"
#include "trainer/files/table.h"

namespace trireme {
namespace {

constexpr auto kPause = std::chrono::milliseconds(200);

std::string amount_text(double amount, ProgressUnit unit) {
  return unit == ProgressUnit::kBytes ? binary_bytes_text(amount) : concat(static_cast<int64_t>(amount));
}

/// 75 -> "1:15", 3675 -> "1:01:15".
std::string time_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds);
  const auto two_digits = [](int64_t n) { return (n < 10 ? "0" : "") + std::to_string(n); };
  const std::string rest = ":" + two_digits(whole % 60);
  if (whole < 3600) return std::to_string(whole / 60) + rest;
  return std::to_string(whole / 3600) + ":" + two_digits(whole / 60 % 60) + rest;
}

}  // namespace

std::string progress_text(const std::string& what, ProgressUnit unit, int64_t done, int64_t total, int64_t fresh, double seconds,
                          const std::string& remark) {
  constexpr size_t kWidth = 24;
  constexpr double kMostSeconds = 1e7;  // a longer estimate is meaningless and not shown
  std::string text = what + " ";
  if (total > 0) {
    // The file may have grown since its size was read.
    const double share = std::min(1.0, static_cast<double>(done) / static_cast<double>(total));
    const auto full = static_cast<size_t>(share * kWidth);
    text += concat("[", std::string(full, '#'), std::string(kWidth - full, '.'), "] ", static_cast<int>(share * 100), " % of ",
                   amount_text(static_cast<double>(total), unit));
  } else {
    text += amount_text(static_cast<double>(done), unit);
  }
  if (const double rate = static_cast<double>(fresh) / seconds; seconds > 0 && rate > 0) {
    text += ", " + amount_text(rate, unit) + "/s";
    if (const double left = static_cast<double>(total - done) / rate; total > 0 && left < kMostSeconds)
      text += ", " + time_text(std::max(0.0, left)) + " left";
  }
  return remark.empty() ? text : text + ", " + remark;
}

ProgressLine::ProgressLine(std::string what, ProgressUnit unit, int64_t total, int64_t done)
    : what_(std::move(what)), unit_(unit), total_(total), before_(done), terminal_(::isatty(STDERR_FILENO) == 1), done_(done) {}

ProgressLine::~ProgressLine() { clear(); }

void ProgressLine::clear() {
  const std::lock_guard lock(mutex_);
  if (!line_.empty()) std::cerr << line_.erase() << std::flush;
}

void ProgressLine::advance(int64_t more, const std::string& remark) {
  if (!terminal_) return;
  const std::lock_guard lock(mutex_);
  done_ += more;
  const auto now = Clock::now();
  if (!line_.empty() && now - last_ < kPause) return;
  last_ = now;
  const std::string text =
      progress_text(printable(what_), unit_, done_, total_, done_ - before_, std::chrono::duration<double>(now - begin_).count(), printable(remark));
  std::cerr << line_.replace(text, terminal_columns(STDERR_FILENO)) << std::flush;
}

}  // namespace trireme
