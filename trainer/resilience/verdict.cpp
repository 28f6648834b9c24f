#include "trainer/resilience/verdict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "kernels/core/check.h"
#include "trainer/resilience/waits.h"

namespace trireme {
namespace {

using Life = RankState::Life;
using Kind = Verdict::Kind;
using Ranks = std::vector<RankState>;

const RankState& at(const Ranks& ranks, int rank) { return ranks[static_cast<size_t>(rank)]; }

std::vector<int> ranks_where(const Ranks& ranks, const auto& condition) {
  std::vector<int> found;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (condition(ranks[r])) found.push_back(static_cast<int>(r));
  return found;
}

std::string who(const Ranks& ranks, int rank) {
  return concat("rank ", rank, " (host ", at(ranks, rank).host, ", process ", at(ranks, rank).pid, ")");
}

/// True if these are all ranks of one host, more than one, and there are other hosts.
bool is_host(const Ranks& ranks, const std::vector<int>& culprits) {
  const std::string& host = at(ranks, culprits.front()).host;
  return culprits.size() > 1 && culprits.size() < ranks.size() &&
         culprits == ranks_where(ranks, [&](const RankState& rank) { return rank.host == host; });
}

/// Lists the ranks with hosts and processes, or names the host if is_host().
std::string name_all(const Ranks& ranks, const std::vector<int>& culprits) {
  if (is_host(ranks, culprits)) return concat("host ", at(ranks, culprits.front()).host, " (", list_ranks(culprits), ")");
  constexpr size_t kMost = 8;
  std::string text;
  for (size_t i = 0; i < std::min(culprits.size(), kMost); ++i) text += concat(i == 0 ? "" : ", ", who(ranks, culprits[i]));
  if (culprits.size() > kMost) text += concat(" and ", culprits.size() - kMost, " more");
  return text;
}

constexpr const char* kDied = " has died";

/// How a rank missed the operation in which others wait. A rank that still reports never entered it (kEntered). One that has ended or is stopped may
/// have entered it after its last report, but did not finish it (kFinished).
enum class Missed : uint8_t { kEntered, kFinished };

/// " in step 12, after: backward of micro-batch 2, blocks.3".
std::string last_words(const RankState& rank) {
  const std::string step = rank.last.step == 0 ? " before the first step" : concat(" in step ", rank.last.step);
  return rank.last.action.empty() ? step : concat(step, ", after: ", rank.last.action);
}

/// The operations in which others wait for `culprit`, with the action of the waiting ranks, because a rank that never entered has none.
std::vector<BlockedOperation> operations_without(const Ranks& ranks, int culprit, Missed missed) {
  std::map<std::pair<std::string, std::string>, BlockedOperation> found;  // by operation and action
  for (const int waiter : waiters_on(ranks, culprit)) {
    const RankState& rank = at(ranks, waiter);
    const std::vector<int> missing = ranks_not_entered(ranks, waiter);
    const bool is_missing = std::find(missing.begin(), missing.end(), culprit) != missing.end();
    if (!is_missing && missed != Missed::kFinished) continue;
    BlockedOperation operation = blocked_in(rank);
    const std::pair key{operation.text, operation.action};
    found.try_emplace(key, std::move(operation)).first->second.waiting.push_back(waiter);
  }
  std::vector<BlockedOperation> operations;
  for (auto& [key, operation] : found) operations.push_back(std::move(operation));
  return operations;
}

/// "; ranks 0, 1 wait for it in all_reduce 118 of group tensor (forward of micro-batch 2, blocks.3), which it never entered", for the first
/// operations, and the ranks that wait in further ones. `whom`: "it" if the text has named the rank last, else "rank 2".
std::string who_waits(const std::vector<BlockedOperation>& operations, const std::string& whom, Missed missed) {
  constexpr size_t kMost = 3;
  std::string text;
  for (size_t i = 0; i < std::min(operations.size(), kMost); ++i) {
    const BlockedOperation& operation = operations[i];
    text += concat("; ", list_ranks(operation.waiting), operation.waiting.size() == 1 ? " waits" : " wait", " for ", whom, " in ", operation.text,
                   operation.action.empty() ? "" : concat(" (", operation.action, ")"), ", which it never ",
                   missed == Missed::kEntered ? "entered" : "finished");
  }
  std::vector<int> others;
  for (size_t i = kMost; i < operations.size(); ++i) others.insert(others.end(), operations[i].waiting.begin(), operations[i].waiting.end());
  std::ranges::sort(others);
  if (!others.empty()) text += concat("; ", list_ranks(others), others.size() == 1 ? " waits" : " wait", " for ", whom, ", too");
  return text;
}

std::vector<std::string> hosts_of(const Ranks& ranks, const std::vector<int>& culprits) {
  std::vector<std::string> hosts;
  for (const int culprit : culprits) {
    const std::string& host = at(ranks, culprit).host;
    if (!host.empty() && std::find(hosts.begin(), hosts.end(), host) == hosts.end()) hosts.push_back(host);
  }
  return hosts;
}

/// When a rank began to fail in this way.
double failing_since(const RankState& rank, Kind kind) {
  switch (kind) {
    case Kind::kDead: return rank.died_by;
    case Kind::kFailed:
    case Kind::kLeft: return rank.ended;
    case Kind::kSilent: return rank.heard;
    case Kind::kHung:
    case Kind::kDisagreement:
    case Kind::kDeadlock: return rank.moved;
    case Kind::kAbsent:
    case Kind::kLauncher: break;
  }
  return 0;
}

/// A verdict about `culprits` without the text and without the ranks that wait for them.
Verdict accuse(const Ranks& ranks, Kind kind, const std::vector<int>& culprits) {
  const RankState& first = at(ranks, culprits.front());
  Verdict verdict{.kind = kind, .ranks = culprits, .hosts = hosts_of(ranks, culprits), .action = first.last.action};
  verdict.since = HUGE_VAL;
  for (const int culprit : culprits) {
    verdict.step = std::max(verdict.step, at(ranks, culprit).last.step);
    verdict.since = std::min(verdict.since, failing_since(at(ranks, culprit), kind));
  }
  if (!first.last.wait) return verdict;
  verdict.operation = blocked_in(first);
  verdict.operation->waiting = {culprits.front()};
  return verdict;
}

/// `deed`: e.g. " has died". Silence and inactivity last until now, so the text then separates the step with "; it was".
Verdict blame(const Ranks& ranks, Kind kind, const std::vector<int>& culprits, const std::string& deed, Missed missed) {
  const int first = culprits.front();
  Verdict verdict = accuse(ranks, kind, culprits);
  verdict.text = concat(name_all(ranks, culprits), deed);
  if (culprits.size() > 1) {
    verdict.text += concat("; rank ", first, " was");
  } else if (deed != kDied) {
    verdict.text += "; it was";
  }
  verdict.text += last_words(at(ranks, first));
  for (const int culprit : culprits) {
    const std::vector<BlockedOperation> operations = operations_without(ranks, culprit, missed);
    if (operations.empty()) continue;
    verdict.text += who_waits(operations, culprit == first ? "it" : concat("rank ", culprit), missed);
    verdict.operation = operations.front();
    break;
  }
  return verdict;
}

std::string plural(const std::vector<int>& ranks, const char* one, const char* several) { return ranks.size() == 1 ? one : several; }

/// Grammatical number for the subject that name_all() returns.
std::string plural(const Ranks& ranks, const std::vector<int>& culprits, const char* one, const char* several) {
  return is_host(ranks, culprits) ? one : plural(culprits, one, several);
}

std::string seconds(double value) { return concat(static_cast<int64_t>(std::lround(std::max(value, 1.0))), " s"); }

std::optional<Verdict> judge_ended(const Ranks& ranks, double now, double failed_seconds, bool& settled) {
  constexpr double kCollect = 0.1;
  double first_failed = HUGE_VAL, first_dead = HUGE_VAL, first_death = HUGE_VAL;
  for (const RankState& rank : ranks) {
    if (rank.life == Life::kFailed) first_failed = std::min(first_failed, rank.ended);
    if (rank.life != Life::kDead) continue;
    first_dead = std::min(first_dead, rank.ended);
    first_death = std::min(first_death, rank.died_by);
  }
  settled = first_failed < HUGE_VAL || first_dead < HUGE_VAL;
  if (first_dead < first_failed) {
    if (now - first_dead < kCollect) return std::nullopt;
    std::vector<int> culprits = ranks_where(ranks, [&](const RankState& rank) { return rank.life == Life::kDead && rank.died_after <= first_death; });
    const std::string& host = at(ranks, culprits.front()).host;
    const std::vector<int> of_host = ranks_where(ranks, [&](const RankState& rank) { return rank.host == host; });
    const bool host_lost = std::all_of(of_host.begin(), of_host.end(), [&](int rank) { return at(ranks, rank).life == Life::kDead; });
    if (host_lost && of_host.size() < ranks.size()) culprits = of_host;
    Verdict verdict = blame(ranks, Kind::kDead, culprits, plural(ranks, culprits, kDied, " have died"), Missed::kFinished);
    if (!is_host(ranks, culprits))
      for (const int dead : ranks_where(ranks, [](const RankState& rank) { return rank.life == Life::kDead; }))
        verdict.deaths.push_back(blame(ranks, Kind::kDead, {dead}, kDied, Missed::kFinished));
    return verdict;
  }
  if (first_failed == HUGE_VAL || now - first_failed < failed_seconds) return std::nullopt;
  const std::vector<int> left = ranks_where(ranks, [](const RankState& rank) { return rank.life == Life::kAlive; });
  if (left.empty()) return std::nullopt;
  const std::vector<int> failed = ranks_where(ranks, [](const RankState& rank) { return rank.life == Life::kFailed; });
  Verdict verdict = blame(ranks, Kind::kFailed, failed, plural(ranks, failed, " has failed", " have failed"), Missed::kFinished);
  verdict.text += concat("; ", list_ranks(left), plural(left, " is still running", " are still running"));
  return verdict;
}

std::optional<Verdict> judge_silent(const Ranks& ranks, double now, double limit) {
  const auto quiet = [&](const RankState& rank, double since) { return rank.life == Life::kAlive && now - rank.heard >= since; };
  std::vector<int> culprits = ranks_where(ranks, [&](const RankState& rank) { return quiet(rank, limit); });
  if (culprits.empty()) return std::nullopt;
  // Include other ranks of a lost host, which are about to reach the limit.
  culprits = ranks_where(ranks, [&](const RankState& rank) { return quiet(rank, std::max(limit / 2, limit - 1)); });
  double since = 0;
  for (const int culprit : culprits) since = std::max(since, now - at(ranks, culprit).heard);
  return blame(
      ranks, Kind::kSilent, culprits,
      concat(plural(ranks, culprits, " has not responded", " have not responded"), " for ", seconds(since), ": stopped, or host or link is lost"),
      Missed::kFinished);
}

std::optional<Verdict> judge_absent(const Ranks& ranks, double now, double join_seconds) {
  const std::vector<int> absent = ranks_where(ranks, [](const RankState& rank) { return rank.life == Life::kAbsent; });
  if (absent.empty() || now < join_seconds) return std::nullopt;
  Verdict verdict = accuse(ranks, Kind::kAbsent, absent);
  std::string& text = verdict.text;
  text = absent.size() == ranks.size() ? "no rank ever joined" : concat(list_ranks(absent), " never joined");
  text += concat(": not started, or blocked before monitoring began, for ", seconds(now));
  const std::vector<int> there = ranks_where(ranks, [](const RankState& rank) { return rank.life == Life::kAlive; });
  if (!there.empty()) text += concat("; ", list_ranks(there), plural(there, " waits", " wait"));
  return verdict;
}

/// ", waiting in the device". Of several ranks, each in a collective: ", waiting in all_gather 8 of group shard and all_reduce 118 of group
/// tensor, which all of their ranks have entered".
std::string where_stuck(const Ranks& ranks, const std::vector<int>& culprits) {
  std::vector<std::string> operations;
  for (const int culprit : culprits)
    if (const std::string text = blocked_in(at(ranks, culprit)).text; std::ranges::count(operations, text) == 0) operations.push_back(text);
  std::string text = ", waiting in ";
  for (size_t i = 0; i < operations.size(); ++i) text += concat(i == 0 ? "" : i + 1 == operations.size() ? " and " : ", ", operations[i]);
  return culprits.size() == 1 ? text : concat(text, ", which all ", operations.size() == 1 ? "" : "of their ", "ranks have entered");
}

/// No rank makes progress and all of them wait.
Verdict judge_stuck(const Ranks& ranks, const std::vector<int>& waiting, const std::string& since) {
  std::vector<int> culprits;
  if (const std::string text = disagreement(ranks, culprits); !text.empty()) {
    Verdict verdict = blame(ranks, Kind::kDisagreement, culprits,
                            plural(ranks, culprits, " has called a mismatched operation", " have called a mismatched operation"), Missed::kEntered);
    verdict.text += concat("; ", text, "; no progress for ", since);
    return verdict;
  }
  std::vector<bool> wanted(ranks.size());
  for (const int waiter : waiting)
    for (const int missing : ranks_not_entered(ranks, waiter)) wanted[static_cast<size_t>(missing)] = true;
  for (size_t r = 0; r < ranks.size(); ++r)
    if (wanted[r] && ranks_not_entered(ranks, static_cast<int>(r)).empty()) culprits.push_back(static_cast<int>(r));
  if (!culprits.empty()) {
    const RankState& first = at(ranks, culprits.front());
    if (first.life == Life::kAlive) culprits = possibly_stuck(ranks, culprits.front());
    const bool has_left = first.life == Life::kLeft;
    const std::string how = has_left
                                ? plural(ranks, culprits, " has exited normally", " have exited normally")
                                : concat(plural(ranks, culprits, " has", " have"), " made no progress for ", since, where_stuck(ranks, culprits));
    return blame(ranks, has_left ? Kind::kLeft : Kind::kHung, culprits, how, Missed::kEntered);
  }
  constexpr size_t kMost = 8;
  Verdict verdict = accuse(ranks, Kind::kDeadlock, waiting);
  verdict.text = concat("deadlock: no rank has made progress for ", since);
  for (size_t i = 0; i < std::min(waiting.size(), kMost); ++i) {
    const RankState& rank = at(ranks, waiting[i]);
    const std::vector<int> missing = ranks_not_entered(ranks, waiting[i]);
    verdict.text += concat("; ", who(ranks, waiting[i]), last_words(rank), ", waits in ", blocked_in(rank).text,
                           missing.empty() ? ", which all ranks have entered" : concat(", which ", list_ranks(missing), " never entered"));
  }
  if (waiting.size() > kMost) verdict.text += concat("; and ", waiting.size() - kMost, " more");
  return verdict;
}

std::optional<Verdict> judge_hung(const Ranks& ranks, double now, double silence_seconds) {
  double timeout = 0;
  for (const RankState& rank : ranks) {
    if (rank.life == Life::kAbsent || (rank.life == Life::kAlive && rank.last.timeout <= 0)) return std::nullopt;
    if (rank.life == Life::kAlive) timeout = std::max(timeout, rank.last.timeout);
  }
  const auto standing = [&](const RankState& rank) { return rank.life == Life::kAlive && now - rank.moved > timeout; };
  const std::vector<int> still = ranks_where(ranks, standing);
  if (still.empty()) return std::nullopt;
  // A stopped process: report it as silent, although silence_seconds have not passed yet.
  const double quiet = std::min(1.0, silence_seconds / 2);
  const std::vector<int> silent = ranks_where(ranks, [&](const RankState& rank) { return standing(rank) && now - rank.heard >= quiet; });
  if (!silent.empty()) return judge_silent(ranks, now, now - at(ranks, silent.front()).heard);
  double since = 0;
  for (const int rank : still) since = std::max(since, now - at(ranks, rank).moved);

  std::vector<int> idle, waited_for;
  for (const int rank : still) {
    if (at(ranks, rank).last.wait) continue;
    idle.push_back(rank);
    if (!operations_without(ranks, rank, Missed::kEntered).empty()) waited_for.push_back(rank);
  }
  if (!waited_for.empty()) idle = waited_for;
  if (!idle.empty())
    return blame(ranks, Kind::kHung, idle, concat(plural(ranks, idle, " has made no progress for ", " have made no progress for "), seconds(since)),
                 Missed::kEntered);
  const size_t alive = ranks_where(ranks, [](const RankState& rank) { return rank.life == Life::kAlive; }).size();
  if (still.size() < alive) return std::nullopt;  // a rank makes progress, and the others may be waiting for it
  return judge_stuck(ranks, still, seconds(since));
}

}  // namespace

void note_report(std::vector<RankState>& ranks, size_t rank, Progress::Snapshot report, double now) {
  RankState& self = ranks[rank];
  self.heard = now;
  if (report.count != self.last.count) self.moved = now;
  const bool shorter = report.timeout > 0 && (self.last.timeout <= 0 || report.timeout < self.last.timeout);
  self.last = std::move(report);
  if (!shorter) return;
  // Until now the long timeout of this rank applied to the others too.
  for (RankState& other : ranks) other.moved = now;
}

std::optional<Verdict> judge(const std::vector<RankState>& ranks, double now, const Limits& limits) {
  bool settled = false;
  std::optional<Verdict> verdict = judge_ended(ranks, now, limits.failed_seconds, settled);
  if (!verdict && !settled) verdict = judge_silent(ranks, now, limits.silence_seconds);
  if (!verdict && !settled) verdict = judge_absent(ranks, now, limits.join_seconds);
  if (!verdict && !settled) verdict = judge_hung(ranks, now, limits.silence_seconds);
  return verdict;
}

std::string place_of_stacks(const std::vector<RankState>& ranks, const std::vector<int>& accused) {
  std::vector<std::string> files;
  for (const int rank : accused)
    if (const std::string file = ranks[static_cast<size_t>(rank)].stacks.value_or(""); !file.empty()) files.push_back(file);
  if (files.empty()) return "";
  return concat("; stacks of ", accused.size() == 1 ? "its" : "their", " threads: ", files.front(),
                files.size() == 1 ? "" : concat(" and the logs of ", files.size() - 1, " more"));
}

}  // namespace trireme
