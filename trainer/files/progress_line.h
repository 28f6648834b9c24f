#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

#include "trainer/files/terminal_line.h"

namespace trireme {

enum class ProgressUnit : uint8_t { kBytes, kItems };

/// "reading [########........] 41 % of 1.2 GiB, 35 MiB/s, 0:21 left, REMARK": `done` of `total` (0: unknown), of which `fresh` took `seconds`.
std::string progress_text(const std::string& what, ProgressUnit unit, int64_t done, int64_t total, int64_t fresh, double seconds,
                          const std::string& remark = "");

/// A progress line on standard error, updated in place and truncated to the width of the terminal; no output if standard error is not a terminal. The
/// destructor erases the line. Thread-safe.
class ProgressLine {
 public:
  /// `total` 0: unknown, as for a pipe. `done`: completed by an earlier attempt, excluded from the rate.
  ProgressLine(std::string what, ProgressUnit unit, int64_t total, int64_t done = 0);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void advance(int64_t more, const std::string& remark = "");
  /// Erases the line until the next advance(), so that other output can be printed.
  void clear();

 private:
  using Clock = std::chrono::steady_clock;

  const std::string what_;
  const ProgressUnit unit_;
  const int64_t total_;
  const int64_t before_;
  const bool terminal_;
  const Clock::time_point begin_ = Clock::now();
  std::mutex mutex_;
  int64_t done_;
  TerminalLine line_;
  Clock::time_point last_;
};

}  // namespace trireme
