#include "trainer/resilience/waits.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "kernels/core/check.h"

namespace trireme {
namespace {

using Group = Progress::Group;
using Wait = Progress::Wait;

bool same_members(const Group& a, const Group& b) { return a.name == b.name && a.ranks == b.ranks; }

/// The number of earlier groups with the same name and members; all ranks create groups in the same order.
size_t earlier_twins(const RankState& rank, size_t group) {
  const auto& groups = rank.last.groups;
  return static_cast<size_t>(std::count_if(groups.begin(), groups.begin() + static_cast<ptrdiff_t>(group),
                                           [&](const Group& other) { return same_members(other, groups[group]); }));
}

/// The entry of `other` for a group of `rank`; null if it has not created the group.
const Group* counterpart(const RankState& rank, size_t group, const RankState& other) {
  size_t before = earlier_twins(rank, group);
  for (const Group& candidate : other.last.groups) {
    if (same_members(candidate, rank.last.groups[group]) && before-- == 0) return &candidate;
  }
  return nullptr;
}

const Group* group_of(const RankState& rank) {
  const auto& wait = rank.last.wait;
  if (!wait || !wait->group || *wait->group >= rank.last.groups.size()) return nullptr;
  return &rank.last.groups[*wait->group];
}

/// True if `other`, at `place` in the group, has started its part of the operation in which `waiter`, at `own_place`, waits.
bool has_entered(const RankState& waiter, size_t own_place, const RankState& other, size_t place) {
  const Wait& wait = *waiter.last.wait;
  const Group* const group = counterpart(waiter, *wait.group, other);
  if (wait.messages.empty()) return group != nullptr && group->started >= wait.number;
  return std::all_of(wait.messages.begin(), wait.messages.end(), [&](const Progress::Message& message) {
    if (message.peer != place) return true;
    if (group == nullptr) return false;
    const std::vector<uint64_t>& begun = message.send ? group->received : group->sent;
    return own_place < begun.size() && begun[own_place] >= message.number;
  });
}

bool has_part(const Wait& wait, size_t place) {
  return wait.messages.empty() ||
         std::any_of(wait.messages.begin(), wait.messages.end(), [&](const Progress::Message& message) { return message.peer == place; });
}

std::string describe(const Wait& wait, const Group* group) {
  if (group == nullptr) return wait.what;
  if (wait.messages.empty()) return concat(wait.what, " ", wait.number, " of group ", group->name);
  std::string text = concat(wait.what, " in group ", group->name, " (");
  for (const Progress::Message& message : wait.messages) {
    text += concat(text.back() == '(' ? "" : ", ", "message ", message.number, message.send ? " to" : " from");
    if (message.peer < group->ranks.size()) text += concat(" rank ", group->ranks[message.peer]);
  }
  return text + ")";
}

}  // namespace

std::vector<int> ranks_not_entered(const std::vector<RankState>& ranks, int waiter) {
  const RankState& self = ranks[static_cast<size_t>(waiter)];
  const Group* const group = group_of(self);
  std::vector<int> missing;
  if (group == nullptr) return missing;
  const auto own_place = static_cast<size_t>(std::find(group->ranks.begin(), group->ranks.end(), waiter) - group->ranks.begin());
  for (size_t place = 0; place < group->ranks.size(); ++place) {
    const int other = group->ranks[place];
    if (other != waiter && !has_entered(self, own_place, ranks[static_cast<size_t>(other)], place)) missing.push_back(other);
  }
  return missing;
}

std::vector<Blockage> blockages(const std::vector<RankState>& ranks) {
  // A collective is the same operation on all its ranks; an exchange is a different one on each.
  using Place = std::tuple<std::string, std::vector<int>, size_t, int>;
  std::map<Place, Blockage> found;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Group* const group = group_of(ranks[r]);
    if (group == nullptr) continue;
    const auto rank = static_cast<int>(r);
    BlockedOperation operation = blocked_in(ranks[r]);
    const Wait& wait = *ranks[r].last.wait;
    const Place place{operation.text, group->ranks, earlier_twins(ranks[r], *wait.group), wait.messages.empty() ? -1 : rank};
    const auto [blockage, is_new] = found.try_emplace(place);
    // Once for each operation, because it takes time that grows with the square of the number of ranks.
    if (is_new) blockage->second = {std::move(operation), group->ranks, ranks_not_entered(ranks, rank)};
    blockage->second.operation.waiting.push_back(rank);
  }
  std::vector<Blockage> all;
  for (auto& [place, blockage] : found) all.push_back(std::move(blockage));
  const auto is_cause = [&](const Blockage& blockage) {
    return std::any_of(blockage.missing.begin(), blockage.missing.end(), [&](int rank) { return ranks_not_entered(ranks, rank).empty(); });
  };
  std::stable_partition(all.begin(), all.end(), is_cause);
  return all;
}

std::vector<NextOperation> next_operations(const std::vector<RankState>& ranks, int rank) {
  const RankState& self = ranks[static_cast<size_t>(rank)];
  std::vector<NextOperation> operations;
  for (size_t g = 0; g < self.last.groups.size(); ++g) {
    const Group& group = self.last.groups[g];
    if (group.started == 0) continue;  // it may have only messages
    NextOperation next{group.name, group.started + 1, {}, {}};
    for (const int member : group.ranks) {
      if (member == rank) continue;
      next.others.push_back(member);
      const Group* const theirs = counterpart(self, g, ranks[static_cast<size_t>(member)]);
      if (theirs != nullptr && theirs->started >= next.number) next.begun.push_back(member);
    }
    operations.push_back(std::move(next));
  }
  std::stable_partition(operations.begin(), operations.end(), [](const NextOperation& next) { return !next.begun.empty(); });
  return operations;
}

std::vector<int> waiters_on(const std::vector<RankState>& ranks, int rank) {
  std::vector<int> waiters;
  for (size_t other = 0; other < ranks.size(); ++other) {
    const Group* const group = group_of(ranks[other]);
    // A rank that died later was waiting too.
    const RankState::Life life = ranks[other].life;
    const bool died_later = life == RankState::Life::kDead && ranks[other].died_after > ranks[static_cast<size_t>(rank)].died_by;
    const bool waited = life == RankState::Life::kAlive || died_later;
    if (!waited || group == nullptr || static_cast<int>(other) == rank) continue;
    const auto found = std::find(group->ranks.begin(), group->ranks.end(), rank);
    if (found == group->ranks.end() || !has_part(*ranks[other].last.wait, static_cast<size_t>(found - group->ranks.begin()))) continue;
    waiters.push_back(static_cast<int>(other));
  }
  return waiters;
}

std::string disagreement(const std::vector<RankState>& ranks, std::vector<int>& culprits) {
  using Place = std::tuple<std::string, std::vector<int>, size_t, uint64_t>;
  std::map<Place, std::map<std::string, std::vector<int>>> operations;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const Group* const group = group_of(ranks[r]);
    if (ranks[r].life != RankState::Life::kAlive || group == nullptr || !ranks[r].last.wait->messages.empty()) continue;
    const Wait& wait = *ranks[r].last.wait;
    operations[{group->name, group->ranks, earlier_twins(ranks[r], *wait.group), wait.number}][wait.what].push_back(static_cast<int>(r));
  }
  for (const auto& [place, by_verb] : operations) {
    if (by_verb.size() < 2) continue;
    std::vector<std::pair<std::string, std::vector<int>>> sides(by_verb.begin(), by_verb.end());
    std::stable_sort(sides.begin(), sides.end(), [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
    std::string text = concat("operation ", std::get<3>(place), " of group ", std::get<0>(place), " is ");
    for (size_t i = 0; i < sides.size(); ++i) text += concat(i == 0 ? "" : ", ", sides[i].first, " on ", list_ranks(sides[i].second));
    culprits = sides.front().second;
    return text;
  }
  return "";
}

std::vector<int> possibly_stuck(const std::vector<RankState>& ranks, std::vector<int> found) {
  for (size_t next = 0; next < found.size(); ++next) {
    const RankState& self = ranks[static_cast<size_t>(found[next])];
    const Group* const group = group_of(self);
    if (group == nullptr || !self.last.wait->messages.empty()) continue;
    for (const int other : group->ranks) {
      const bool waits = other >= 0 && static_cast<size_t>(other) < ranks.size() && ranks[static_cast<size_t>(other)].life == RankState::Life::kAlive;
      if (waits && std::find(found.begin(), found.end(), other) == found.end() && ranks_not_entered(ranks, other).empty()) found.push_back(other);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

BlockedOperation blocked_in(const RankState& rank) {
  const Group* const group = group_of(rank);
  const Wait& wait = *rank.last.wait;
  return {wait.what, group != nullptr ? group->name : "", wait.number, rank.last.action, {}, describe(wait, group)};
}

}  // namespace trireme
