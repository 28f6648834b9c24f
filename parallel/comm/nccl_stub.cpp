// For builds without NCCL: ranks on GPUs communicate through host memory (staged.h).
#include "parallel/comm/nccl.h"

namespace trireme {
namespace {

constexpr const char* kAbsent = "this build has no NCCL support: nccl.h or the CUDA Toolkit was not found when it was configured";

}  // namespace

bool nccl_available(std::string* why) {
  if (why != nullptr) *why = kAbsent;
  return false;
}

std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> /*host*/, cuda::Gpu& /*gpu*/, const NcclOptions& /*options*/) {
  throw ConfigError(kAbsent);
}

}  // namespace trireme
