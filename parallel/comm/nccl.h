#pragma once
// Communication between GPUs through NCCL, one GPU per rank. This header includes neither CUDA nor NCCL; a build without them links nccl_stub.cpp,
// which reports NCCL as unavailable.
#include <memory>
#include <string>

#include "kernels/core/gpu.h"
#include "parallel/comm/communicator.h"

namespace trireme {

/// Whether this process can use NCCL: the build supports it, the library loads and is new enough. Otherwise `why`, if not null, is set to the reason.
bool nccl_available(std::string* why);

struct NcclOptions {
  int max_blocks = 0;             ///< thread blocks, hence multiprocessors, of each communicator's kernels at most; 0: as NCCL decides
  bool register_buffers = false;  ///< reserve_memory() allocates with ncclMemAlloc, and register_memory() registers that memory
};

/// Uses `host` for tensors in host memory and NCCL for tensors of `gpu`. Collective over `host`, whose ranks must each have a different GPU. A world
/// or group of one rank is a SelfCommunicator.
///  - Groups with the same ranks in the same order share a stream and an NCCL communicator, created with the first of them, from an id sent over `host`.
///    Ranks must therefore also destroy their groups in the same order. host_group() makes a group of `host`, without an NCCL communicator.
///  - A verb on device tensors runs on the group's stream after the work already queued on the compute stream; compute work queued after Work::wait runs
///    after the verb. The host never waits. The operation holds its tensors until Work::wait, because the arena reuses memory in the order of the
///    compute stream.
///  - Operations of all groups run in their order of issue on each rank (NCCL_LAUNCH_ORDER_IMPLICIT=1), which must be free of cycles over the ranks.
///  - Gpu::communicates() holds from the start of a verb on device tensors to its Work::wait.
///  - barrier() synchronises the host threads, not the GPUs.
///  - Registered memory is deregistered from a communicator before its end, and from all before it is freed.
/// Errors: ConfigError if NCCL is absent or too old; InternalErrors name call, group and rank, and the verb if the error is asynchronous (checked at
/// every start and wait). After an error, and when an exception drops an operation, no communicator of this rank can be used any more. Neither the error
/// nor the destruction of groups and operations blocks, so the error can be reported. The destructor of the last group aborts all communicators of the
/// rank together and blocks until its GPU has stopped waiting; a process that ends instead need not destroy it.
std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> host, cuda::Gpu& gpu, const NcclOptions& options = {});

}  // namespace trireme
