#pragma once
#include "kernels/core/arena.h"
#include "kernels/core/isa.h"

namespace trireme {

class OperationLog;  // kernels/core/operation_log.h
namespace cuda {
class Gpu;  // kernels/core/gpu.h
}

/// What every operation needs and nothing else: state is passed, never global. One per rank.
struct Context {
  Device device = Device::kReference;
  Arena* arena = nullptr;
  int threads = 1;              ///< threads an operation of kCpu may use
  cuda::Gpu* gpu = nullptr;     ///< of kCuda: operations are queued on its compute stream
  Isa isa = best_isa();         ///< instructions that kernels of kCpu may use
  OperationLog* log = nullptr;  ///< collects what runs, where somebody asks
};

}  // namespace trireme
