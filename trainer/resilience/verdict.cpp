#include "trainer/resilience/verdict.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "kernels/core/check.h"
#include "kernels/core/counted.h"
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

/// All ranks of the host of `rank`; only `rank` if there is no other host: its name would say nothing then.
std::vector<int> host_of(const Ranks& ranks, int rank) {
  std::vector<int> members = ranks_where(ranks, [&](const RankState& other) { return other.host == at(ranks, rank).host; });
  return members.size() < ranks.size() ? members : std::vector<int>{rank};
}

/// The culprits in parts, each of which is named as one: all of host_of(), or single ranks.
std::vector<std::vector<int>> parts_of(const Ranks& ranks, const std::vector<int>& culprits) {
  std::vector<std::vector<int>> parts;
  std::vector<bool> is_part(ranks.size());
  for (const int culprit : culprits) {
    if (is_part[static_cast<size_t>(culprit)]) continue;
    std::vector<int> part = host_of(ranks, culprit);
    if (!std::ranges::includes(culprits, part)) part = {culprit};
    for (const int rank : part) is_part[static_cast<size_t>(rank)] = true;
    parts.push_back(std::move(part));
  }
  return parts;
}

/// True if they are all ranks of one host of several.
bool is_host(const Ranks& ranks, const std::vector<int>& culprits) { return culprits.size() > 1 && culprits == host_of(ranks, culprits.front()); }

/// "host n1 (ranks 0, 1), rank 5 (host n3, process 4205)".
std::string name_all(const Ranks& ranks, const std::vector<int>& culprits) {
  constexpr size_t kMost = 8;
  const std::vector<std::vector<int>> parts = parts_of(ranks, culprits);
  std::string text;
  for (size_t i = 0; i < std::min(parts.size(), kMost); ++i) {
    const int first = parts[i].front();
    text += concat(i == 0 ? "" : ", ",
                   parts[i].size() == 1 ? who(ranks, first) : concat("host ", at(ranks, first).host, " (", list_ranks(parts[i]), ")"));
  }
  size_t others = 0;
  for (size_t i = kMost; i < parts.size(); ++i) others += parts[i].size();
  return others == 0 ? text : concat(text, " and ", counted(others, "more rank"));
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

/// The operations in which ranks other than `culprits` wait for `culprit`, with the action of the waiting ranks, because a rank that never entered
/// has none.
std::vector<BlockedOperation> operations_without(const Ranks& ranks, int culprit, const std::vector<int>& culprits, Missed missed) {
  std::map<std::pair<std::string, std::string>, BlockedOperation> found;  // by operation and action
  for (const int waiter : waiters_on(ranks, culprit)) {
    if (std::ranges::binary_search(culprits, waiter)) continue;
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
/// operations, and the ranks that wait in further ones. `whom`: "it" if the text has named only one rank, else "rank 2".
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
    const std::vector<BlockedOperation> operations = operations_without(ranks, culprit, culprits, missed);
    if (operations.empty()) continue;
    verdict.text += who_waits(operations, culprits.size() == 1 ? "it" : concat("rank ", culprit), missed);
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
    const auto is_dead = [&](int rank) { return at(ranks, rank).life == Life::kDead; };
    const std::vector<int> first =
        ranks_where(ranks, [&](const RankState& rank) { return rank.life == Life::kDead && rank.died_after <= first_death; });
    std::set<int> with_hosts(first.begin(), first.end());
    for (const int rank : first) {
      const std::vector<int> host = host_of(ranks, rank);
      if (std::ranges::all_of(host, is_dead)) with_hosts.insert(host.begin(), host.end());
    }
    const std::vector<int> culprits(with_hosts.begin(), with_hosts.end());
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

/// ", waiting in the device (ranks 3, 7), in all_gather 8 of group shard (entered by ranks 0, 2) and in all_reduce 118 of group tensor (entered by
/// ranks 4, 5)": each operation in which one of the culprits waits.
std::string where_stuck(const Ranks& ranks, const std::vector<int>& culprits) {
  constexpr size_t kMost = 3;
  std::map<std::string, std::vector<int>> outside;  // of any group, as in the device
  for (const int culprit : culprits)
    if (const BlockedOperation operation = blocked_in(at(ranks, culprit)); operation.group.empty()) outside[operation.text].push_back(culprit);
  std::vector<std::string> places;
  for (const auto& [what, waiting] : outside) places.push_back(culprits.size() == 1 ? what : concat(what, " (", list_ranks(waiting), ")"));
  for (const Blockage& blockage : blockages(ranks)) {
    const auto is_culprit = [&](int waiter) { return std::ranges::binary_search(culprits, waiter); };
    if (std::ranges::none_of(blockage.operation.waiting, is_culprit)) continue;
    const bool is_collective = blockage.operation.number > 0;
    const std::string place = concat(blockage.operation.text, is_collective ? concat(" (entered by ", list_ranks(blockage.members), ")") : "");
    if (std::ranges::count(places, place) == 0)
      places.push_back(place);  // several ranks may wait for one message each, of the same number and sender
  }
  const size_t listed = std::min(places.size(), kMost);
  std::string text = ", waiting in ";
  for (size_t i = 0; i < listed; ++i) text += concat(i == 0 ? "" : i + 1 == places.size() ? " and in " : ", in ", places[i]);
  return places.size() == listed ? text : concat(text, " and in ", counted(places.size() - listed, "more operation"));
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
  std::vector<int> left;
  for (const int culprit : culprits)
    if (at(ranks, culprit).life == Life::kLeft) left.push_back(culprit);
  if (!left.empty()) return blame(ranks, Kind::kLeft, left, plural(ranks, left, " has exited normally", " have exited normally"), Missed::kEntered);
  if (!culprits.empty()) {
    culprits = possibly_stuck(ranks, culprits);
    return blame(ranks, Kind::kHung, culprits,
                 concat(plural(ranks, culprits, " has", " have"), " made no progress for ", since, where_stuck(ranks, culprits)), Missed::kEntered);
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
  if (waiting.size() > kMost) verdict.text += concat("; and ", counted(waiting.size() - kMost, "more rank"));
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
    if (!operations_without(ranks, rank, {}, Missed::kEntered).empty()) waited_for.push_back(rank);
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

void set_wall_times(Verdict& verdict, double now, std::chrono::system_clock::time_point wall_now) {
  const auto date_one = [&](Verdict& one) {
    const std::chrono::duration<double> age(now - one.since);
    one.since_time = wall_now - std::chrono::duration_cast<std::chrono::system_clock::duration>(age);
  };
  date_one(verdict);
  for (Verdict& death : verdict.deaths) date_one(death);
}

std::string place_of_stacks(const std::vector<RankState>& ranks, const std::vector<int>& accused) {
  std::vector<std::string> files;
  for (const int rank : accused)
    if (const std::string file = ranks[static_cast<size_t>(rank)].stacks.value_or(""); !file.empty()) files.push_back(file);
  if (files.empty()) return "";
  return concat("; stacks of ", accused.size() == 1 ? "its" : "their", " threads: ", files.front(),
                files.size() == 1 ? "" : concat(" and the logs of ", counted(files.size() - 1, "more rank")));
}

}  // namespace trireme
