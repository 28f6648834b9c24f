#pragma once
#include <set>
#include <string>
#include <string_view>

namespace trireme {

/// Separates the ranks' standard error from mpirun's own output: framed notices, help-aggregation and signal lines. Identical errors of several ranks
/// are kept once. Works incrementally, as bytes arrive.
class MpirunOutputFilter {
 public:
  /// Returns the lines completed by `bytes` that were written by ranks.
  std::string feed(std::string_view bytes);
  /// Returns the rest at the end of the stream.
  std::string finish();
  /// mpirun's own output, without frames: the only explanation if a rank was killed or mpirun itself failed.
  const std::string& notices() const { return notices_; }
  /// "rank 3 ended first, by signal 9 (Killed)" if notices() say so: mpirun, the parent of the ranks, knows the order even if all end at once. Empty
  /// for a rank that exited on request.
  std::string first_exit_notice() const;
  /// The rank of first_exit_notice(); -1 if that is empty.
  int first_rank() const;
  /// True once rank 0 has announced that mpirun has started it (announce_start).
  bool started() const { return started_; }
  /// True once rank 0 has announced that the ranks handle signals (announce_ready).
  bool ready() const { return ready_; }

 private:
  bool is_own(std::string_view line);
  /// Returns true if `line` ends with an announcement, and removes it from `line`.
  bool take_announcement(std::string_view& line);
  /// True for "rank 3: ..." with the same text as an earlier rank: ranks that read the same file fail with the same error.
  bool is_echo(std::string_view line);

  std::string partial_;
  std::string notices_;
  std::set<std::string> failures_;
  bool framed_ = false;
  bool ready_ = false;
  bool started_ = false;
};

/// The announcements of rank 0. They are never shown.
constexpr std::string_view kStartedLine = "\x01trireme ranks started";
constexpr std::string_view kReadyLine = "\x01trireme ranks ready";

}  // namespace trireme
