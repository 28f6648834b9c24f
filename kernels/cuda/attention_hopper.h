#pragma once
// Attention by products of warpgroups (sm_90a), for flash_forward and flash_backward. T is bfloat16 or float16.
#include "kernels/cuda/attention_kernels.cuh"

namespace trireme::cuda {

inline bool uses_hopper(const Context& ctx, const AttentionShape& shape) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ctx.gpu->index()), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, ctx.gpu->index()), "cudaDeviceGetAttribute");
  return major == 9 && minor == 0 && hopper_supports(shape.head_size);
}

template <class T>
void hopper_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse);
template <class T>
void hopper_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape);

}  // namespace trireme::cuda
