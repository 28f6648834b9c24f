#pragma once
#include <cuda_runtime_api.h>

#include "kernels/core/check.h"

namespace trireme::cuda {

/// For calls that must not fail. Errors: InternalError with the call and CUDA's name and description of the error.
inline void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess) throw InternalError(concat(call, ": ", cudaGetErrorName(error), ": ", cudaGetErrorString(error)));
}

}  // namespace trireme::cuda
