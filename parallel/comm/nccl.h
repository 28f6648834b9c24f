#pragma once
// Ranks on GPUs of their own, through NCCL. The headers of CUDA and NCCL stay in nccl.cpp; a build without them links nccl_stub.cpp, which refuses.
#include <memory>
#include <string>

#include "kernels/core/gpu.h"
#include "parallel/comm/communicator.h"

namespace trireme {

/// Whether this process can use NCCL: the build has it, the library loads and is new enough. Otherwise `why` (where given) says what is missing.
bool nccl_available(std::string* why);

/// `host` for tensors in host memory, NCCL for those of `gpu`; collective over `host`, whose ranks each have another GPU. A world or group of one rank is
/// a SelfCommunicator.
///  - Every group has a stream and an NCCL communicator of its own, made at once, from an id sent over `host`. A verb on device tensors runs on that stream
///    behind what is queued on the compute stream at the start, and what is queued there after Work::wait runs behind it; the host never waits. Until then
///    the operation holds its tensors, as the arena reuses memory in the order of the compute stream.
///  - Operations of all groups run in their order of issue on each rank (NCCL_LAUNCH_ORDER_IMPLICIT=1), which must be free of cycles over the ranks.
///  - barrier() is that of the host: it says nothing about the GPUs.
/// Errors: ConfigError where NCCL is absent or too old; InternalErrors name call, group and rank, and the verb where the error is asynchronous (looked for at
/// every start and wait). After one, and when an operation is dropped by an exception, all communicators of this rank are aborted: the GPU waits for nobody.
std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> host, cuda::Gpu& gpu);

}  // namespace trireme
