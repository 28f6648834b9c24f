#pragma once
#include <cuda_runtime_api.h>

#include "kernels/core/check.h"

namespace trireme::cuda {

/// An error of the CUDA runtime is never expected: it names the call and what CUDA says.
inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw InternalError(concat(call, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

}  // namespace trireme::cuda
