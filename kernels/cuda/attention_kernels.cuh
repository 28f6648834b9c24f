#pragma once
// What the attention kernels share: where heads lie in memory, in which order blocks come, and the launchers that kernels/cuda/attention.cu chooses from.
// A "head" is one of B*N pairs (sequence, query head), b*N + n; a "pair" one of B*K pairs (sequence, kv head), b*K + k. As n / (N/K) = k, the query heads
// of a pair are the N/K consecutive ones from pair * (N/K).
#include <algorithm>
#include <cmath>

#include "kernels/cuda/device.cuh"
#include "kernels/ops/attention.h"

namespace trireme::cuda {

constexpr float kLog2E = 1.4426950408889634F;
constexpr float kLn2 = 0.6931471805599453F;

struct AttentionLayout {
  explicit AttentionLayout(const AttentionShape& shape)
      : sequence(static_cast<int>(shape.sequence)),
        heads(static_cast<int>(shape.heads)),
        kv_heads(static_cast<int>(shape.kv_heads)),
        head_size(static_cast<int>(shape.head_size)),
        group(heads / kv_heads),
        columns(shape.columns()),
        out_columns(shape.heads * shape.head_size),
        to_values(shape.kv_heads * shape.head_size),
        scale(static_cast<float>(1 / std::sqrt(static_cast<double>(shape.head_size)))),
        scale_log2(scale * kLog2E),
        band{static_cast<int>(shape.band().within(shape.sequence).window)} {}

  /// First element of a head or pair, at token 0: of queries, keys and values in qkv, and in out.
  __device__ int64_t query(int head) const { return int64_t{head / heads} * sequence * columns + head % heads * head_size; }
  __device__ int64_t key(int pair) const { return int64_t{pair / kv_heads} * sequence * columns + (heads + pair % kv_heads) * head_size; }
  __device__ int64_t value(int pair) const { return key(pair) + to_values; }
  __device__ int64_t output(int head) const { return int64_t{head / heads} * sequence * out_columns + head % heads * head_size; }
  __device__ bool sees(int query, int key) const { return key <= query && !band.beyond(query - key); }

  int sequence, heads, kv_heads, head_size;
  int group;                ///< query heads of a kv head
  int64_t columns;          ///< between rows of qkv
  int64_t out_columns;      ///< between rows of out
  int64_t to_values;        ///< from a key to its value
  float scale, scale_log2;  ///< 1/sqrt(H); the same for exponentials that are powers of two
  AttentionBand<int> band;  ///< within the sequence
};

/// What AttentionBand is without a window, known when a kernel is compiled: masks and bounds of tiles then cost nothing.
struct WholePast {
  static constexpr int first_key(int) { return 0; }
  static constexpr int last_query(int, int sequence) { return sequence - 1; }
  static constexpr bool beyond(int) { return false; }
  static constexpr float first_maximum() { return AttentionBand<int>{0}.first_maximum(); }
};
/// Calls body(band) with that of a layout as one of the two types.
template <class Body>
void dispatch_band(const AttentionLayout& layout, Body&& body) {
  if (layout.band.window == 0) return body(WholePast{});
  return body(layout.band);
}

/// The order of a grid over items (heads or pairs) and tiles of a sequence. Causal tiles differ in length: the longest of many items go first, so that
/// the grid ends with short ones; the items in flight together are few enough for what they read again and again to stay in the L2 cache.
struct BlockOrder {
  static constexpr int64_t kCachedBytes = int64_t{32} << 20;  ///< of 40 MB (sm_80) and 50 MB (sm_90)

  BlockOrder(int64_t item_count, int64_t tile_count, int64_t bytes_of_item)
      : items(static_cast<int>(item_count)),
        tiles(static_cast<int>(tile_count)),
        at_once(static_cast<int>(std::clamp<int64_t>(kCachedBytes / std::max<int64_t>(bytes_of_item, 1), 1, std::max<int64_t>(item_count, 1)))) {
    TRIREME_CHECK(item_count * tile_count <= INT32_MAX, "attention: a grid of ", item_count, " x ", tile_count, " blocks");
  }
  dim3 grid() const { return dim3(static_cast<unsigned>(items * tiles)); }

  struct Place {
    int item;
    int tile;  ///< counted from the longest
  };
  __device__ Place place() const {
    const int index = static_cast<int>(blockIdx.x), round = index / (at_once * tiles), rest = index - round * at_once * tiles;
    const int left = items - round * at_once, here = left < at_once ? left : at_once;
    return {round * at_once + rest % here, rest / here};
  }

  int items, tiles, at_once;
};

/// The pairs first_pair.. of a backward pass. What it knows of their queries beforehand is laid out [heads, statistics_stride(T)], zeros beyond token T:
/// lse (for the flash kernels in powers of two, else natural) and delta = sum over H of dout * out; both 16-byte aligned.
template <class T>
struct AttentionBackward {
  const T* dout;
  const T* qkv;
  const float* lse;
  const float* delta;
  T* dqkv;
  int64_t first_pair, pairs;
};
constexpr int kStatisticsTile = 64;
__host__ __device__ constexpr int64_t statistics_stride(int64_t sequence) {
  return (sequence + kStatisticsTile - 1) / kStatisticsTile * kStatisticsTile;
}

/// Tensor cores: T is bfloat16 or float16, H one of 32, 64, 96, 128, tensors 16-byte aligned.
bool flash_takes(int64_t head_size);
template <class T>
void flash_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, T* out, float* lse);
template <class T>
void flash_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape);

/// Any alignment, H up to kPlainHeadSize. T may be float, too.
constexpr int64_t kPlainHeadSize = 256;
template <class T>
void plain_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, T* out, float* lse);
template <class T>
void plain_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape);

}  // namespace trireme::cuda
