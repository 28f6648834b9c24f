#pragma once
// All-reduce, reduce-scatter and all-gather of our own: a communicator that runs the lists of collective_steps.h over the messages of another one.
//
// Progress. A start posts the messages of the first step and never waits. Every wait for any operation of the world, every start and advance() take all
// lists in flight as far as the arrived messages allow. So ranks may wait for several operations in different orders, as long as all of them issue in
// one order. What that costs in overlap: while a rank computes, only the messages of the current step move, and the next step begins at its next call,
// which the executor makes after each action.
// Each list has a channel of its own, so that the messages of lists that are in flight together and those of the caller do not mix.
//
// Memory. A list that sums takes a buffer of the largest message that it receives; a reduce_scatter whose output is not a part of its input also takes
// a copy of the input. Both come from an arena of their own, because they are no part of the model: forecasts of memory do not contain them.
#include <memory>
#include <optional>
#include <vector>

#include "parallel/comm/collective_costs.h"
#include "parallel/comm/communicator.h"

namespace trireme {

struct StepwiseOptions {
  std::optional<CollectiveAlgorithm> algorithm = {};  ///< not given: the fastest by `within` or `between`, for each operation
  MessageCosts within = {}, between = {};             ///< between ranks of a host, and for groups on several hosts
  std::vector<int> hosts = {};                        ///< by world rank, any numbers that differ between hosts; empty: all ranks are on one host
  bool only_between_hosts = false;                    ///< groups on one host use the collectives of `inner`
};

/// Wraps `inner`, a world, and every group of more than one rank made from it. Other verbs are those of `inner`; a barrier is an all_reduce. Sums have
/// the order of collective_steps.h. All ranks need equal options. Errors, besides those of `inner`: where `inner` compares the messages of two ranks,
/// as threads and MPI do, ranks that call with different counts get its error for a message of the wrong length; other differences are not detected.
std::unique_ptr<Communicator> stepwise(std::unique_ptr<Communicator> inner, const StepwiseOptions& options);

}  // namespace trireme
