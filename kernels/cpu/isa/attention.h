#pragma once
// Causal attention of kernels/cpu, compiled for each level of instructions; bf16 for two levels more than the other loops, as matrix products are
// what they are for. Notation: kernels/ops/attention.h. Rules of this folder: kernels.h.
#include <cstdint>

#include "kernels/core/bfloat16.h"
#include "kernels/core/float16.h"
#include "kernels/ops/attention_band.h"

namespace trireme::cpu {

/// Queries, or keys, of a block. A work item depends on it, so it is one for all levels.
constexpr int64_t kAttentionBlock = 64;

struct AttentionSizes {
  int64_t sequence, heads, kv_heads, head_size;
  AttentionBand<int64_t> band;
};

/// Items: (sequence, kv head, pair of query blocks), in this order. The first and the last block make a pair, as do those inside them, so that under
/// a causal mask all items are about one size.
template <class T>
struct AttentionForward {
  const T* qkv;
  AttentionSizes sizes;
  T* out;
  float* lse;
};

/// Items: (sequence, kv head). With `split`, for more threads than those: (sequence, kv head, block), which is the gradients of a block of keys and
/// values and of one of queries, and computes scores twice. Both have the same bits.
template <class T>
struct AttentionBackward {
  const T *dout, *qkv, *out;
  const float* lse;
  AttentionSizes sizes;
  bool split;
  T* dqkv;
};

/// Bytes of workspace that a thread needs, a multiple of 64; it begins on such a multiple.
using AttentionWorkspace = int64_t (*)(const AttentionSizes&);
template <class Arguments>
using AttentionKernel = void (*)(const Arguments&, int64_t begin, int64_t end, void* workspace);

/// What a level has for a type; null: nothing of its own.
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
