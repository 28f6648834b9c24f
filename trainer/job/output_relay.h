#pragma once
#include <chrono>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace trireme {

/// Passes what ranks print on to a descriptor whose reader may pause or go away, without waiting for it. After a write has failed, everything is dropped.
class OutputRelay {
 public:
  enum class Kind {
    kLog,   ///< may lose lines: beyond a limit of bytes not yet read whole lines are left out, and a line in their place says how many
    kText,  ///< is kept until it is read
  };

  OutputRelay(int descriptor, Kind kind, size_t limit = size_t{1} << 20)
      : descriptor_(descriptor), kind_(kind), limit_(kind == Kind::kText ? std::numeric_limits<size_t>::max() : limit) {}

  void add(std::string_view bytes);
  /// There is something to write: poll for descriptor() to become writable, then call write_some().
  bool pending() const { return !pending_.empty(); }
  int descriptor() const { return descriptor_; }
  /// A text that cannot be written: its reader has gone, or the disk is full.
  bool lost_text() const { return kind_ == Kind::kText && failed_; }
  void write_some();
  /// Writes the rest, until the reader has taken nothing for `timeout`; negative: for ever.
  void finish(std::chrono::milliseconds timeout);

 private:
  void report_left_out();

  int descriptor_;
  Kind kind_;
  size_t limit_;
  std::string pending_;
  int64_t left_out_ = 0;  ///< lines, not yet reported
  bool at_line_start_ = true;
  bool skipping_ = false;  ///< the line under way
  bool failed_ = false;
};

}  // namespace trireme
