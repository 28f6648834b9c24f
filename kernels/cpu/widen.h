#pragma once
// bf16 operands for kernels that compute on fp32. The copies are the CPU's own scratch memory, in no category of the rank's arena: a GPU, or a CPU kernel
// that reads bf16 itself, needs none, and a forecast must not depend on that.
#include <memory>

#include "kernels/core/tensor.h"
#include "kernels/cpu/parallel.h"

namespace trireme::cpu {

/// An fp32 tensor of `shape`, uninitialised.
inline Tensor scratch_f32(const Shape& shape) {
  Arena arena(Device::kReference);  // a tensor may outlive its arena
  return Tensor::empty({Device::kReference, &arena}, shape, DType::kF32, MemoryCategory::kWorkspace);
}

/// The elements of a bf16 tensor in fp32.
inline Tensor widen(const Context& ctx, const Tensor& narrow) {
  const Tensor wide = scratch_f32(narrow.shape());
  const bfloat16* const from = narrow.data<bfloat16>();
  float* const to = wide.data<float>();
  parallel_for(ctx, narrow.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = from[i];
  });
  return wide;
}

/// narrow := wide, rounded.
inline void round_to(const Context& ctx, const Tensor& wide, const Tensor& narrow) {
  const float* const from = wide.data<float>();
  bfloat16* const to = narrow.data<bfloat16>();
  parallel_for(ctx, narrow.numel(), kElementsPerThread, [=](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = static_cast<bfloat16>(from[i]);
  });
}

}  // namespace trireme::cpu
