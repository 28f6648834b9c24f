#pragma once
#include <functional>
#include <vector>

#include "parallel/comm/communicator.h"
#include "parallel/comm/stepwise.h"
#include "tests/support/recording_communicator.h"

namespace trireme {

struct RankOptions {
  bool poison = false;                              ///< wrap every communicator in a PoisonCommunicator
  std::optional<StepwiseOptions> collectives = {};  ///< collectives by lists of steps instead of those of the threads
  std::vector<int> hosts = {};                      ///< by rank; if given, messages between hosts are sealed, and collectives too
  std::function<std::string(int rank)> key = {};    ///< text that the key of a rank follows from; by default equal for all
  std::function<std::unique_ptr<Communicator>(std::unique_ptr<Communicator>)> wire = {};  ///< wraps the threads' communicators
  std::vector<CommunicationRecord>* records = nullptr;                                    ///< if not null: resized to one for each rank, and filled
};

/// Runs `body` on n rank threads with a world communicator each, and joins them. An exception on one rank aborts the others. Rethrows the
/// first exception that was not caused by another rank's failure. Catch assertions are not thread-safe: a body throws (TRIREME_CHECK) instead.
void run_ranks(int n, const std::function<void(Communicator& world)>& body, const RankOptions& options = {});

/// Makes a new communicator over the ranks of `world`, for callers that must own one. Collective.
std::unique_ptr<Communicator> whole_world(Communicator& world);

}  // namespace trireme
