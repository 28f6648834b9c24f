#pragma once
// Causal attention of kernels/cpu, compiled for each instruction-set level. bf16 is also compiled for avx512_bf16 and amx, which accelerate only
// matrix products. Notation: kernels/ops/attention.h. Rules of this folder: kernels.h.
#include <cstdint>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"
#include "kernels/ops/attention_band.h"

namespace trireme::cpu {

/// Queries or keys per block. Work items depend on it, so all levels share it.
constexpr int64_t kAttentionBlock = 64;

struct AttentionSizes {
  int64_t sequence, heads, kv_heads, head_size;
  float scale;  ///< of the scores
  AttentionBand<int64_t> band;
  int64_t first_row;   ///< row of the first sequence in all tensors
  int64_t row_length;  ///< lse is [rows / row_length, heads, row_length]: more than `sequence` tokens if the sequences are documents of longer ones
};

/// Items: (sequence, kv head, pair of query blocks), in this order. Block i is paired with the i-th block from the end, so that under a causal mask
/// all items have about equal cost.
template <class T>
struct AttentionForward {
  const T* qkv;
  AttentionSizes sizes;
  T* out;
  float* lse;
};

/// Items: (sequence, kv head). With `split`, for more threads than such items: (sequence, kv head, block). Such an item computes the gradients of one
/// block of keys and values and of one block of queries; scores are computed twice. Both variants are bit-identical.
template <class T>
struct AttentionBackward {
  const T *dout, *qkv, *out;
  const float* lse;
  AttentionSizes sizes;
  bool split;
  T* dqkv;
};

/// Workspace bytes per thread, a multiple of 64. The workspace is 64-byte aligned.
using AttentionWorkspace = int64_t (*)(const AttentionSizes&);
template <class Arguments>
using AttentionKernel = void (*)(const Arguments&, int64_t begin, int64_t end, void* workspace);

/// The kernels of a level for one type; null: the level has none of its own.
template <class T>
struct TypedAttention {
  AttentionKernel<AttentionForward<T>> forward = nullptr;
  AttentionKernel<AttentionBackward<T>> backward = nullptr;
  AttentionWorkspace forward_workspace = nullptr;
  AttentionWorkspace backward_workspace = nullptr;
};

struct AttentionKernels {
  TypedAttention<float> f32;
  TypedAttention<bfloat16> bf16;
  TypedAttention<float16> f16;
};

}  // namespace trireme::cpu
