#pragma once
// A communicator without overlap, to measure what overlap gains.
#include <memory>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Wraps `inner`, a world, and every group made from it: each verb waits for its operation before it returns. Same bits. `inner` outlives it.
std::unique_ptr<Communicator> blocking(Communicator& inner);

}  // namespace trireme
