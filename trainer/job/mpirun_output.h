#pragma once
#include <set>
#include <string>
#include <string_view>

namespace trireme {

/// Separates what ranks write to standard error from what mpirun adds: its framed notices, help-aggregation and signal lines. What several
/// ranks say alike is kept once. Fed as bytes arrive.
class MpirunOutputFilter {
 public:
  /// The lines completed by `bytes` that are the ranks' own.
  std::string feed(std::string_view bytes);
  /// The rest, when the stream has ended.
  std::string finish();
  /// What was held back, frames removed: the only explanation when a rank was killed or mpirun itself failed.
  const std::string& notices() const { return notices_; }
  /// "rank 3 ended first, by signal 9 (Killed)" if they say so: mpirun is the parent of the ranks and knows it when all have gone at once. Not of a rank
  /// that has left on request.
  std::string first_end() const;
  /// The rank of first_end(); -1 where that says nothing, or names a rank that left on request.
  int first_rank() const;
  /// Rank 0 has announced that mpirun has started it.
  bool started() const { return started_; }
  /// Rank 0 has announced that the ranks take signals.
  bool ready() const { return ready_; }

 private:
  bool is_own(std::string_view line);
  /// True where `line` ends with an announcement; then leaves what stands before it.
  bool take_announcement(std::string_view& line);
  /// "rank 3: ..." in the words of a rank before it: ranks that read the same file fail alike.
  bool is_echo(std::string_view line);

  std::string partial_;
  std::string notices_;
  std::set<std::string> failures_;
  bool framed_ = false;
  bool ready_ = false;
  bool started_ = false;
};

/// The lines by which rank 0 announces both. They are never shown.
constexpr std::string_view kStartedLine = "\x01trireme ranks started";
constexpr std::string_view kReadyLine = "\x01trireme ranks ready";

}  // namespace trireme
