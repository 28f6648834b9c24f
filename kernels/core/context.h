#pragma once
#include "kernels/core/arena.h"
#include "kernels/core/isa.h"

namespace trireme {

class OperationLog;  // kernels/core/operation_log.h
namespace cuda {
class Gpu;  // kernels/core/gpu.h
}

/// The state that every operation needs; there is no global state. One per rank.
struct Context {
  Device device = Device::kReference;
  Arena* arena = nullptr;
  int threads = 1;               ///< kCpu: threads that an operation may use
  cuda::Gpu* gpu = nullptr;      ///< kCuda: operations are queued on its compute stream
  Isa isa = best_isa();          ///< kCpu: instruction-set level of its kernels
  OperationLog* log = nullptr;   ///< records the operations that run; null: no log
  bool for_gpu = false;          ///< kMeta: counts the workspace that operations take on a GPU
  bool cudnn_attention = false;  ///< kMeta for a GPU: that of cuDNN's attention
};

}  // namespace trireme
