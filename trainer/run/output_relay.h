#pragma once
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme {

/// Passes a log on to a descriptor whose reader may pause or go away, without waiting for it: beyond a limit whole lines are left out, and a line in their
/// place says how many. After the reader has gone everything is dropped.
class OutputRelay {
 public:
  explicit OutputRelay(int descriptor, size_t limit = size_t{1} << 20) : descriptor_(descriptor), limit_(limit) {}

  void add(std::string_view bytes);
  /// There is something to write: poll for descriptor() to become writable, then call write_some().
  bool pending() const { return !pending_.empty(); }
  int descriptor() const { return descriptor_; }
  void write_some();
  /// Writes the rest, until the reader has taken nothing for `timeout`.
  void finish(std::chrono::milliseconds timeout);

 private:
  void report_left_out();

  int descriptor_;
  size_t limit_;
  std::string pending_;
  int64_t left_out_ = 0;  ///< lines, not yet reported
  bool at_line_start_ = true;
  bool skipping_ = false;  ///< the line under way
  bool gone_ = false;      ///< the reader
};

}  // namespace trireme
