#pragma once
// A communicator that records in a Progress which operation its rank enters and which it waits for.
#include <memory>

#include "parallel/comm/communicator.h"
#include "parallel/comm/progress.h"

namespace trireme {

/// Wraps `inner`, a world, and every group made from it. `inner` and `progress` outlive it.
std::unique_ptr<Communicator> watched(Communicator& inner, Progress& progress);

}  // namespace trireme
