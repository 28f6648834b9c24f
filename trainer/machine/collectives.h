#pragma once
#include <memory>

#include "parallel/comm/stepwise.h"
#include "trainer/config/cluster.h"
#include "trainer/config/config.h"

namespace trireme {

/// Options for a world whose ranks are all on one host. `cluster` is resolved; its links decide what `auto` takes, and into how many pieces a double
/// binary tree cuts.
StepwiseOptions stepwise_options(Collectives collectives, const ClusterConfig& cluster);

/// The options for parallel.collectives of a world, with the figures of plan.cluster as rank 0 reads it, or the built-in figures of a CPU. Collective.
/// Errors: AgreedError if rank 0 cannot read the cluster file.
StepwiseOptions agreed_stepwise_options(Communicator& world, const Config& config);

/// Wraps the host communicator of a world as parallel.collectives says; returns `world` for library and for one rank. Collective.
/// Errors: those of agreed_stepwise_options().
std::unique_ptr<Communicator> with_collectives(std::unique_ptr<Communicator> world, const Config& config);

}  // namespace trireme
