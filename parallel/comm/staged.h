#pragma once
// Communication between GPUs through host memory, for ranks that share a GPU or have no NCCL. Slow, same results.
#include <memory>

#include "kernels/core/gpu.h"
#include "parallel/comm/communicator.h"

namespace trireme {

/// Uses `host` for tensors in host memory. Tensors of `gpu` are copied to the host at the start of a verb (the host waits for the compute stream),
/// moved by `host`, and copied back, in the order of the compute stream, by Work::wait. Groups behave the same. A world or group of one rank is a
/// SelfCommunicator. Errors are those of `host`.
std::unique_ptr<Communicator> make_staged_world(std::unique_ptr<Communicator> host, cuda::Gpu& gpu);

}  // namespace trireme
