#pragma once
// Who is to blame when a job no longer moves: a function of what the ranks last said and when.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/progress.h"

namespace trireme {

/// An operation that somebody waits in.
struct BlockedOperation {
  std::string verb;          ///< "all_reduce", "exchange", "the device"
  std::string group;         ///< name of the communicator; empty for what is no communication
  uint64_t number = 0;       ///< of a collective operation in that group
  std::string action;        ///< what those who wait have begun last: "forward of micro-batch 2, blocks.3"; empty before the first action
  std::vector<int> waiting;  ///< ranks whose wait in it tells of this, ascending
  std::string text;          ///< "all_reduce 118 of group tensor"
};

/// Why the job cannot go on.
struct Verdict {
  enum class Kind : uint8_t {
    kDead,          ///< the ranks have ended without a word
    kFailed,        ///< the ranks have ended with errors of their own, and others have not ended with them
    kAbsent,        ///< the ranks never joined
    kSilent,        ///< the ranks do not answer: stopped, or their host or link is lost
    kHung,          ///< the ranks answer and do nothing
    kLeft,          ///< the ranks have ended in order, and others wait for them
    kDisagreement,  ///< the ranks are in another operation than the others at the same place of a group
    kDeadlock,      ///< the ranks, all that are alive, wait for each other
    kLauncher,      ///< mpirun does not run; no rank is to blame
  };
  Kind kind = Kind::kDead;
  std::vector<int> ranks = {};          ///< to blame, ascending
  std::vector<std::string> hosts = {};  ///< of these ranks, each once, in the order of the ranks; none of a rank that never joined
  int64_t step = 0;                     ///< the furthest that these ranks were in, 0 before the first
  std::string action = {};              ///< what the first of the ranks has begun last
  /// Where the job stands still: the first operation in which others wait for these ranks, else the one that the first of the ranks waits in itself. None where
  /// there is neither.
  std::optional<BlockedOperation> operation = {};
  std::string text = {};  ///< all of this in a sentence: the rank, its host, what it was doing, the operation it never entered and who waits for it
  /// Where single ranks have died: for each, the verdict that names it as the only cause. They may have died within some milliseconds, and whoever knows which
  /// was the first takes its verdict.
  std::vector<Verdict> deaths = {};
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
///   hung     the count stands still for longer than the most patient of all ranks has timeout: a rank in no wait, else one that others wait for and that
///            never entered their operation, else all that wait for each other. Not judged while a rank has no timeout at all, or is absent.
std::optional<Verdict> judge(const std::vector<RankState>& ranks, double now, const Limits& limits);

}  // namespace trireme
