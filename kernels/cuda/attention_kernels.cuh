#pragma once
// Shared by the attention kernels: the memory layout of heads, the order of blocks, and the launchers that kernels/cuda/attention.cu selects from.
// "head" numbers the B*N combinations (sequence, query head) as b*N + n, "pair" the B*K combinations (sequence, kv head) as b*K + k. Since n / (N/K)
// = k, the query heads of a pair are the N/K consecutive ones from pair * (N/K).
#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention.h"
#include "kernels/cuda/device.cuh"
#include "kernels/ops/attention.h"

namespace trireme::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

struct AttentionLayout {
  explicit AttentionLayout(const AttentionShape& shape, const Documents& documents = {})
      : sequence(static_cast<int>(shape.sequence)),
        heads(static_cast<int>(shape.heads)),
        kv_heads(static_cast<int>(shape.kv_heads)),
        head_size(static_cast<int>(shape.head_size)),
        group(heads / kv_heads),
        columns(shape.columns()),
        out_columns(shape.heads * shape.head_size),
        to_values(shape.kv_heads * shape.head_size),
        scale(static_cast<float>(shape.scale())),
        scale_log2(scale * kLog2E),
        band{static_cast<int>(shape.band().within(shape.sequence).window)},
        starts(documents.starts_or_null()),
        ends(documents.ends_or_null()) {}

  /// Offset of the first element of a head or pair at token 0: its query, key and value in qkv, and its output in out.
  __device__ int64_t query(int head) const { return int64_t{head / heads} * sequence * columns + head % heads * head_size; }
  __device__ int64_t key(int pair) const { return int64_t{pair / kv_heads} * sequence * columns + (heads + pair % kv_heads) * head_size; }
  __device__ int64_t value(int pair) const { return key(pair) + to_values; }
  __device__ int64_t output(int head) const { return int64_t{head / heads} * sequence * out_columns + head % heads * head_size; }

  /// Whether queries attend to less than all keys before them: with a window, or to the keys of their document only.
  __host__ __device__ bool bounded() const { return band.window != 0 || starts != nullptr; }
  /// First key that a query of sequence b attends to. It ascends with the query; queries beyond the sequence count as its last one.
  __device__ int first_key(int b, int query) const {
    query = query < sequence ? query : sequence - 1;
    const int in_band = band.first_key(query), start = starts == nullptr ? 0 : starts[int64_t{b} * sequence + query];
    return in_band > start ? in_band : start;
  }
  /// The query behind the last one that attends to a key of sequence b. It ascends with the key; keys beyond the sequence count as its last one.
  __device__ int end_of_queries(int b, int key) const {
    key = key < sequence ? key : sequence - 1;
    const int in_band = band.last_query(key, sequence) + 1, end = ends == nullptr ? sequence : ends[int64_t{b} * sequence + key];
    return in_band < end ? in_band : end;
  }
  /// Initial value of a running maximum of scores, as AttentionBand::first_maximum: the first tile may also lie before the document of a query.
  static constexpr float first_maximum(bool of_bounded) { return AttentionBand<int>{of_bounded ? 1 : 0}.first_maximum(); }

  int sequence, heads, kv_heads, head_size;
  int group;                     ///< query heads per kv head
  int64_t columns;               ///< elements between rows of qkv
  int64_t out_columns;           ///< elements between rows of out
  int64_t to_values;             ///< elements from a key to its value
  float scale, scale_log2;       ///< of the scores, and that times log2(e) for exp2
  AttentionBand<int> band;       ///< limited to the sequence
  const int32_t *starts, *ends;  ///< of Documents, or null
};

/// Calls body(std::bool_constant<layout.bounded()>). Full causal attention has kernels of its own, in which masks and bounds of tiles cost nothing.
template <class Body>
void dispatch_bounded(const AttentionLayout& layout, Body&& body) {
  if (layout.bounded()) return body(std::true_type{});
  return body(std::false_type{});
}

/// Order of the blocks of a grid over items (heads or pairs) and tiles of a sequence. Causal tiles differ in length: the longest tiles of many items
/// come first, so that the grid ends with short ones. Few enough items are in flight together that the data they reread stays in the L2 cache.
struct BlockOrder {
  static constexpr int64_t kCachedBytes = int64_t{32} << 20;  ///< the L2 cache is 40 MB on sm_80 and 50 MB on sm_90

  BlockOrder(int64_t item_count, int64_t tile_count, int64_t bytes_of_item)
      : items(static_cast<int>(item_count)),
        tiles(static_cast<int>(tile_count)),
        at_once(static_cast<int>(std::clamp<int64_t>(kCachedBytes / std::max<int64_t>(bytes_of_item, 1), 1, std::max<int64_t>(item_count, 1)))) {
    TRIREME_CHECK(item_count * tile_count <= INT32_MAX, "attention: a grid of ", item_count, " x ", tile_count, " blocks is too large");
  }
  __host__ __device__ int blocks() const { return items * tiles; }
  dim3 grid() const { return dim3(static_cast<unsigned>(blocks())); }

  struct Place {
    int item;
    int tile;  ///< 0 is the longest
  };
  __device__ Place place() const { return place(static_cast<int>(blockIdx.x)); }
  __device__ Place place(int index) const {
    const int round = index / (at_once * tiles), rest = index - round * at_once * tiles;
    const int left = items - round * at_once, here = left < at_once ? left : at_once;
    return {round * at_once + rest % here, rest / here};
  }

  int items, tiles, at_once;
};

/// What the blocks of the flash backward share: gradients of queries, to which one block after another adds.
struct QuerySums {
  float* sums = nullptr;         ///< [heads, statistics_stride(T), H], 16-byte aligned; each tile in the order of the blocks' fragments
  uint32_t* counters = nullptr;  ///< [heads, statistics_stride(T) / kCountedQueries], zeros before the launch
  uint32_t* ticket = nullptr;    ///< [1], zero before the launch
};

/// Arguments of a backward pass over `pairs` pairs from first_pair. lse and delta = sum over H of dout * out, both 16-byte aligned, have shape
/// [heads, statistics_stride(T)] and are zero from token T on. lse is in base 2 for the flash kernels, in base e otherwise.
template <class T>
struct AttentionBackward {
  AttentionLayout layout;
  const T* dout;
  const T* qkv;
  const float* lse;
  const float* delta;
  T* dqkv;
  int64_t first_pair, pairs;
  QuerySums query_sums;  ///< used by the flash kernels only
};

/// Tensor-core kernels: T is bfloat16 or float16, H one of 32, 64, 96, 128, tensors 16-byte aligned.
template <class T>
void flash_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse);
template <class T>
void flash_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape);

/// fp32-unit kernels: any alignment, H up to kPlainHeadSize; T may also be float.
constexpr int64_t kPlainHeadSize = 256;
template <class T>
void plain_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse);
template <class T>
void plain_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape);

}  // namespace trireme::cuda
