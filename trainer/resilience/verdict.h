#pragma once
// Who is to blame when a job no longer moves: a function of what the ranks last said and when.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/progress.h"

namespace trireme {

/// Why the job cannot go on.
struct Verdict {
  std::string text;  ///< names the rank, its host, what it was doing, the operation it never entered and who waits for it
  int64_t step = 0;  ///< the rank was in, 0 before the first
  /// Where single ranks have died: for each, the text that names it as the only cause. They may have died within some milliseconds, and whoever knows which
  /// was the first takes its text.
  std::map<int, std::string> deaths = {};
};

/// What is known of a rank. Times are seconds since the watch began, on one clock, which stands still while its reader does not run.
struct RankState {
  enum class Life : uint8_t {
    kAbsent,  ///< not yet heard of
    kAlive,
    kLeft,    ///< ended in order
    kFailed,  ///< ended after it had reported an error of its own
    kDead,    ///< ended without a word
  };
  Life life = Life::kAbsent;
  std::string host;
  int64_t pid = 0;
  Progress::Snapshot last;
  double heard = 0;                    ///< last word
  double moved = 0;                    ///< the count has grown, or somebody has become less patient
  double ended = 0;                    ///< life is one of the last three: when that was noticed
  double died_after = 0, died_by = 0;  ///< kDead: when, as well as that is known
};

struct Limits {
  double silence_seconds = 10;
  double join_seconds = 600;
  double failed_seconds = 60;
};

/// A rank's word has come in.
void note_report(std::vector<RankState>& ranks, size_t rank, Progress::Snapshot report, double now);

/// What ends the job, if anything does:
///   dead     a rank's connection has ended without a goodbye, a tenth of a second ago (others that end meanwhile are its consequences, or its whole host).
///            After a rank that has failed with an error of its own nobody is blamed, unless others outlive it for failed_seconds;
///   absent   not yet heard of at join_seconds;
///   silent   not heard of for silence_seconds;
///   hung     the count stands still for longer than the most patient of all ranks has patience: a rank in no wait, else one that others wait for and that
///            never entered their operation, else all that wait for each other. Not judged while a rank has no patience at all, or is absent.
std::optional<Verdict> judge(const std::vector<RankState>& ranks, double now, const Limits& limits);

}  // namespace trireme
