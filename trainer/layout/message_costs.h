#pragma once
#include <optional>

#include "parallel/comm/collective_costs.h"
#include "trainer/config/cluster.h"

namespace trireme {

/// Costs of messages over a link of `cluster`, which is resolved: the measured ranges of its `send`, else its one latency and bandwidth. Sums read two
/// numbers and write one, at the memory bandwidth of the device.
MessageCosts message_costs(const LinkConfig& link, const ClusterConfig& cluster);

/// The algorithm that a value of parallel.collectives names; nullopt for library and auto.
std::optional<CollectiveAlgorithm> algorithm_of(Collectives collectives);

}  // namespace trireme
