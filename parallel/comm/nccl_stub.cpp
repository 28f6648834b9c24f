// In builds without NCCL: ranks on GPUs talk through host memory (staged.h).
#include "parallel/comm/nccl.h"

namespace trireme {
namespace {

constexpr const char* kAbsent = "this build has no NCCL: it was made where nccl.h or the CUDA Toolkit was not found";

}  // namespace

bool nccl_available(std::string* why) {
  if (why != nullptr) *why = kAbsent;
  return false;
}

std::unique_ptr<Communicator> make_nccl_world(std::unique_ptr<Communicator> /*host*/, cuda::Gpu& /*gpu*/) { throw ConfigError(kAbsent); }

}  // namespace trireme
