#pragma once
// Determines which ranks make a job fail or hang: a pure function of the last reports of all ranks and their times.
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "parallel/comm/progress.h"

namespace trireme {

/// An operation in which ranks are blocked.
struct BlockedOperation {
  std::string verb;          ///< "all_reduce", "exchange", "the device"
  std::string group;         ///< name of the communicator; empty if it is not a communication
  uint64_t number = 0;       ///< sequence number of a collective operation in the group
  std::string action;        ///< last action begun by the waiting ranks: "forward of micro-batch 2, blocks.3"; empty before the first
  std::vector<int> waiting;  ///< ranks that wait in it, ascending
  std::string text;          ///< "all_reduce 118 of group tensor"
};

/// Why the job cannot continue.
struct Verdict {
  enum class Kind : uint8_t {
    kDead,          ///< the ranks have died without an error report
    kFailed,        ///< the ranks have exited with errors, and others are still running
    kAbsent,        ///< the ranks never joined
    kSilent,        ///< the ranks do not respond: stopped, or their host or link is lost
    kHung,          ///< the ranks respond but make no progress
    kLeft,          ///< the ranks have exited normally, and others wait for them
    kDisagreement,  ///< the ranks called a different operation than the others at the same place in a group
    kDeadlock,      ///< the ranks, all that are alive, wait for each other
    kLauncher,      ///< mpirun is stopped; no rank is the cause
  };
  Kind kind = Kind::kDead;
  std::vector<int> ranks = {};          ///< the cause, ascending
  std::vector<std::string> hosts = {};  ///< hosts of these ranks without duplicates, ordered by rank; none for a rank that never joined
  int64_t step = 0;                     ///< the highest step of these ranks; 0 before the first
  std::string action = {};              ///< last action begun by the first of the ranks
  /// Where the job is blocked: the first operation in which others wait for these ranks, else the one in which the first of these ranks waits itself;
  /// nullopt if there is neither.
  std::optional<BlockedOperation> operation = {};
  /// When the failure began, as far as its reports tell: on the clock of the RankStates, and, by set_wall_times(), on the wall clock.
  double since = 0;
  std::chrono::system_clock::time_point since_time = {};
  std::string text = {};  ///< all of this in one sentence: rank, host, last action, the operation it never entered, and the waiting ranks
  /// If ranks have died, and not just those of one host: for each, the verdict that names it as the only cause. They may have died within milliseconds
  /// of each other; a caller that knows which died first uses that verdict.
  std::vector<Verdict> deaths = {};
};

/// Known state of a rank. Times are seconds since the start of the hub, on a clock that stops while the hub is suspended.
struct RankState {
  enum class Life : uint8_t {
    kAbsent,  ///< has not joined yet
    kAlive,
    kLeft,    ///< exited normally
    kFailed,  ///< exited after reporting an error
    kDead,    ///< ended without a goodbye
  };
  Life life = Life::kAbsent;
  std::string host;
  int64_t pid = 0;
  Progress::Snapshot last;
  double heard = 0;                    ///< time of the last report
  double moved = 0;                    ///< time when the count last grew, or a timeout of any rank was shortened
  double ended = 0;                    ///< kLeft, kFailed, kDead: when that was detected
  double died_after = 0, died_by = 0;  ///< kDead: bounds of the time of death
  /// Its answer since the hub last asked for the stacks of its threads: the file that they are in; an empty text if it could not read them.
  std::optional<std::string> stacks;
};

struct Limits {
  double silence_seconds = 10;
  double join_seconds = 600;
  double failed_seconds = 60;
};

/// Records a report of a rank.
void note_report(std::vector<RankState>& ranks, size_t rank, Progress::Snapshot report, double now);

/// Returns the verdict that ends the job, if any:
///   dead     a rank's connection closed without a goodbye 0.1 s ago (other ranks that end in between are consequences, or the host was lost).
///            After a rank has failed with an error there is no verdict, unless others keep running for failed_seconds;
///   absent   a rank has not joined after join_seconds;
///   silent   no report for silence_seconds;
///   hung     the count did not grow for longer than the largest timeout of all ranks: blames ranks that are not waiting, else (disagreement) those
///            that called another operation, else (left) those that have exited and never entered an operation, else those that may be stuck while
///            others wait for them, else (deadlock) all that wait for each other. Not judged while a rank has no timeout, or is absent.
std::optional<Verdict> judge(const std::vector<RankState>& ranks, double now, const Limits& limits);

/// Sets `since_time` of a verdict and of each of its deaths: `now` on the clock of the RankStates is `wall_now` on the wall clock.
void set_wall_times(Verdict& verdict, double now, std::chrono::system_clock::time_point wall_now);

/// "; stacks of its threads: runs/a/logs/rank-0003.log"; empty if none of the accused ranks has written any.
std::string place_of_stacks(const std::vector<RankState>& ranks, const std::vector<int>& accused);

}  // namespace trireme
