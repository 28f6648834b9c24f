#pragma once
// Communicators that carry tensors in host memory alone: they take no device memory.
#include <memory>

#include "parallel/comm/communicator.h"

namespace trireme {

/// Wraps `inner`, whose operations on a tensor in GPU memory then are InternalErrors that name verb and group. Groups of it behave the same.
std::unique_ptr<Communicator> host_only(std::unique_ptr<Communicator> inner);

}  // namespace trireme
