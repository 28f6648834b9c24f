#pragma once
// Analyses which rank waits for which, and describes it.
#include <cstdint>
#include <string>
#include <vector>

#include "trainer/files/list_ranks.h"
#include "trainer/resilience/verdict.h"

namespace trireme {

/// Ranks that have not entered the operation in which `waiter` waits; empty if it does not wait for an operation.
std::vector<int> ranks_not_entered(const std::vector<RankState>& ranks, int waiter);

/// An operation in which ranks are blocked, and the ranks that they wait for.
struct Blockage {
  BlockedOperation operation;  ///< `action`: of the first of the waiting ranks
  std::vector<int> members;    ///< ranks of the group
  std::vector<int> missing;    ///< those that have not entered it, ascending; empty: all have
};
/// Every operation in which ranks are blocked. Those with a missing rank that is not itself waiting for others come first: they are the cause.
std::vector<Blockage> blockages(const std::vector<RankState>& ranks);

/// The collective operation of a group that a rank has not begun, while it has begun every earlier one.
struct NextOperation {
  std::string group;        ///< name
  uint64_t number = 0;      ///< in the group
  std::vector<int> others;  ///< the group without the rank
  std::vector<int> begun;   ///< those of them that have begun it, and perhaps do not wait for it yet
};
/// The next collective operation of each group of `rank` that has had one, those that another rank has begun first.
std::vector<NextOperation> next_operations(const std::vector<RankState>& ranks, int rank);

/// Ranks that wait in an operation in which `rank` participates.
std::vector<int> waiters_on(const std::vector<RankState>& ranks, int rank);

/// `found`, which wait in operations that all their ranks have entered or outside of a group, and the other ranks that may be the cause, ascending:
/// such a collective does not end while one of its ranks is stuck, in it or in another operation.
std::vector<int> possibly_stuck(const std::vector<RankState>& ranks, std::vector<int> found);

/// Describes ranks that called different operations at the same place of the same group, minority first: "operation 4 of group world is barrier on
/// rank 1, all_reduce on ranks 0, 2"; `culprits` is the minority. Empty if there are none.
std::string disagreement(const std::vector<RankState>& ranks, std::vector<int>& culprits);

/// The operation in which a rank waits, with `waiting` empty. Its text: "all_reduce 118 of group tensor", "exchange in group pipeline (message 7 from
/// rank 2)", "the device".
BlockedOperation blocked_in(const RankState& rank);

}  // namespace trireme
