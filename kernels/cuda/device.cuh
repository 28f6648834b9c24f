#pragma once
// Common declarations of device code. nvcc compiles it as CUDA. For the simulated machine of the tests it is compiled as plain C++: that machine's
// header (included from the compiler's command line) supplies nvcc's built-ins, and the wrappers below replace syntax that C++ lacks.
#ifdef __CUDACC__
#include <cuda_fp16.h>
#endif
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "kernels/core/context.h"
#include "kernels/core/dtype.h"
#include "kernels/core/gpu.h"
#include "kernels/cuda/error.h"

#ifdef __CUDACC__
/// Shared memory of a block; uninitialised.   TRIREME_SHARED(float[32], partial);
#define TRIREME_SHARED(type, name) __shared__ ::trireme::cuda::Identity<type> name
/// The launch's dynamic shared memory, 16-byte aligned, as T*.
#define TRIREME_DYNAMIC_SHARED(T, name)                                   \
  extern __shared__ __align__(16) unsigned char trireme_dynamic_shared[]; \
  T* const name = reinterpret_cast<T*>(trireme_dynamic_shared)
#endif

namespace trireme::cuda {

template <class T>
using Identity = T;

constexpr int kWarp = 32;

/// Grid, block and dynamic shared memory of a launch.
struct Shape3 {
  dim3 grid;
  dim3 block;
  int64_t shared_bytes = 0;
};

/// Queues a kernel on the compute stream. Opts in to dynamic shared memory above 48 KB.
template <class... Parameters, class... Arguments>
void launch(const Context& ctx, void (*kernel)(Parameters...), const Shape3& shape, Arguments&&... arguments) {
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;
  if (shape.shared_bytes > (48 << 10))
    check(cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(shape.shared_bytes)),
          "cudaFuncSetAttribute");
  [&](Parameters... values) {
    void* pointers[] = {&values...};
    check(cudaLaunchKernel(kernel, shape.grid, shape.block, pointers, static_cast<size_t>(shape.shared_bytes), ctx.gpu->compute()),
          "cudaLaunchKernel");
  }(static_cast<Parameters>(arguments)...);
}

constexpr int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(bfloat16 value) { return static_cast<float>(value); }
__device__ inline float to_float(float16 value) {
#ifdef __CUDACC__
  return __half2float(__ushort_as_half(value.bits));  // one instruction
#else
  return static_cast<float>(value);
#endif
}

template <class T>
__device__ inline T from_float(float value);
template <>
__device__ inline float from_float<float>(float value) {
  return value;
}
template <>
__device__ inline bfloat16 from_float<bfloat16>(float value) {
  return bfloat16(value);
}
template <>
__device__ inline float16 from_float<float16>(float value) {
#ifdef __CUDACC__
  return std::bit_cast<float16>(__half_as_ushort(__float2half_rn(value)));
#else
  return float16(value);
#endif
}

}  // namespace trireme::cuda
