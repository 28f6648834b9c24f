#pragma once
// Who waits for whom, and in which words.
#include <vector>

#include "trainer/resilience/verdict.h"

namespace trireme {

/// Ranks that have not entered the operation that `waiter` waits in; none if it waits for no operation.
std::vector<int> missing_for(const std::vector<RankState>& ranks, int waiter);

/// Ranks in a wait that `rank` has a part in.
std::vector<int> waiters_on(const std::vector<RankState>& ranks, int rank);

/// `rank`, which waits for nobody that is missing, and those of which one may be why: a collective that all have entered does not end while one of them is
/// stuck, there or in another one that it waits for.
std::vector<int> possibly_stuck(const std::vector<RankState>& ranks, int rank);

/// Two or more ranks that are in the same place of the same group with different operations, the fewer first: "operation 4 of group world is barrier on rank
/// 1, all_reduce on ranks 0, 2". Empty if there are none.
std::string disagreement(const std::vector<RankState>& ranks, std::vector<int>& culprits);

/// The operation that a rank waits in, without who else does. Its text: "all_reduce 118 of group tensor", "exchange in group pipeline (message 7 from rank 2)",
/// "the device".
BlockedOperation blocked_in(const RankState& rank);

/// "rank 3", "ranks 3, 4".
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace trireme
