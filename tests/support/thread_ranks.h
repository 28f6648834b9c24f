#pragma once
#include <functional>
#include <vector>

#include "parallel/comm/communicator.h"
#include "tests/support/recording_communicator.h"

namespace trireme {

struct RankOptions {
  bool poison = false;                                  ///< wrap every communicator in a PoisonCommunicator
  std::vector<CommunicationRecord>* records = nullptr;  ///< resized to one for each rank and filled, where given
};

/// Runs `body` on n rank threads with a world communicator each, and joins them. An exception on one rank aborts the others; what is rethrown here is
/// the first that no other rank's failure caused. Catch assertions are not thread-safe: a body throws (TRIREME_CHECK) instead.
void run_ranks(int n, const std::function<void(Communicator& world)>& body, const RankOptions& options = {});

/// A communicator of one's own over the ranks of `world`, for what wants to own one. Collective.
std::unique_ptr<Communicator> whole_world(Communicator& world);

}  // namespace trireme
