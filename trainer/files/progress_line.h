#pragma once
#include <chrono>
#include <cstdint>
#include <mutex>
#include <string>

namespace trireme {

/// What the numbers of a progress line count.
enum class ProgressUnit : uint8_t { kBytes, kItems };

/// "reading [########........] 41 % of 1.2 GiB, 35 MiB/s, 0:21 left": `done` of `total` (0: unknown), `fresh` of it within `seconds`; `remark` ends it.
std::string progress_text(const std::string& what, ProgressUnit unit, int64_t done, int64_t total, int64_t fresh, double seconds,
                          const std::string& remark = "");

/// A line on standard error that rewrites itself on a terminal, cut to its width; silent elsewhere. It goes when the object does, so that what is said next
/// stands alone. From any thread.
class ProgressLine {
 public:
  /// `total` 0: unknown, as of a pipe. `done`: finished by an earlier attempt, no part of the rate.
  ProgressLine(std::string what, ProgressUnit unit, int64_t total, int64_t done = 0);
  ~ProgressLine();
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  void advance(int64_t more, const std::string& remark = "");

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
  bool shown_ = false;
  Clock::time_point last_;
};

}  // namespace trireme
