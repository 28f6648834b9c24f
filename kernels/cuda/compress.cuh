#pragma once
// What the encoders of gradients share.
#include "kernels/core/tensor.h"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {

/// The elements that an encoder reads: gradient + error, or the gradient if `error` is null.
struct EncoderInput {
  const float* gradient;
  const float* error;

  /// N elements from `i`, of which `left` exist; the others are zero.
  template <int N>
  __device__ __forceinline__ void load(int64_t i, int64_t left, float (&v)[N]) const {
    load_vector(gradient + i, left, v);
    if (error == nullptr) return;
    float e[N];
    load_vector(error + i, left, e);
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] += e[k];
  }
};

inline float* floats_or_null(const Tensor& tensor) { return tensor.defined() ? tensor.data<float>() : nullptr; }

}  // namespace trireme::cuda
