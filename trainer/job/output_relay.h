#pragma once
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace trireme {

/// Relays the ranks' output to a descriptor whose reader may pause or disappear, without blocking. After a failed write all output is dropped.
class OutputRelay {
 public:
  enum class Kind {
    kLog,   ///< may lose lines: if more than `limit` bytes are unread, complete lines are dropped and replaced by a line with their number
    kText,  ///< never dropped: buffered until it is read
  };

  OutputRelay(int descriptor, Kind kind, size_t limit = size_t{1} << 20)
      : descriptor_(descriptor), kind_(kind), limit_(kind == Kind::kText ? std::numeric_limits<size_t>::max() : limit) {}

  void add(std::string_view bytes);
  /// True if there is output to write: poll for descriptor() to become writable, then call write_some().
  bool pending() const { return !pending_.empty(); }
  int descriptor() const { return descriptor_; }
  /// True if output of kind kText could not be written: the reader has gone, or the disk is full.
  bool lost_text() const { return kind_ == Kind::kText && failed_; }
  void write_some();
  /// Writes the rest; gives up when the reader has read nothing for `timeout`; negative: no timeout.
  void finish(std::chrono::milliseconds timeout);

 private:
  void report_left_out();

  int descriptor_;
  Kind kind_;
  size_t limit_;
  std::string pending_;
  int64_t left_out_ = 0;  ///< dropped lines not yet reported
  bool at_line_start_ = true;
  bool skipping_ = false;  ///< the current line is being dropped
  bool failed_ = false;
};

}  // namespace trireme
