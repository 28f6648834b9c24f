#pragma once
// A communicator in which nothing runs behind anything: what overlap gains is the difference to it.
#include <memory>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Wraps `inner`, a world, and every group made from it: each verb waits for its operation before it returns. Same bits. `inner` outlives it.
std::unique_ptr<Communicator> blocking(Communicator& inner);

}  // namespace trireme
