// Flash attention on sm_90a, forward, by products of warpgroups (wgmma: warpgroup matrix multiply-accumulate). Each warpgroup owns 64 queries of one
// head, and the warpgroups of a block share tiles of keys and values. As in flash attention 3 (Shah et al. 2024, arXiv:2407.08608) the scores of the
// next tile and the product with the values of this one run together. The exponentials of the next tile should run beside that product, but ptxas 13.0
// moves most of them after its wait. Scores, probabilities and sums stay in registers.
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_panels.cuh"

namespace trireme::cuda {
namespace {

constexpr int kKeys = 128;  // of a tile

/// Warpgroups of a block: limited so that a thread's sums [H], scores and probabilities [128] fit in registers.
template <int H>
constexpr int kGroups = H == 64 ? 3 : 2;
template <int H>
constexpr int kRows = kGroups<H>* kGroupRows;  // queries of a block

template <int H>
struct ForwardMemory {
  using QueryTile = Panels<H, kRows<H>>;
  using KeyTile = Panels<H, kKeys>;
  alignas(1024) unsigned char queries[QueryTile::kBytes];
  unsigned char keys[2][KeyTile::kBytes], values[2][KeyTile::kBytes];
};

/// Running maximum (of raw scores) and sum of the exponentials of a lane's two rows. The sum covers only the lane's own keys until the end.
struct SoftmaxRows {
  float highest[2], sum[2];
};

/// Masks the keys that a query does not attend to. `ahead` = query of the lane's first row - key of the lane's first column. `reach`: of the lane's two
/// rows, keys that it attends to before that query; negative if its first key is a later token.
template <bool kBounded>
__device__ inline void mask(float (&scores)[kKeys / 8][4], int ahead, const int (&reach)[2]) {
#pragma unroll
  for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int key = 8 * n + i % 2, half = i / 2;
      if (key > ahead + 8 * half || (kBounded && key < ahead - reach[half])) scores[n][i] = -INFINITY;
    }
}

/// Replaces scores by exp2((score - maximum) * scale_log2), and returns by what the sums so far are to be multiplied. The maximum is updated only if an
/// exponential would exceed 2^8, as in attention_flash_forward.cu; then `grows`.
__device__ inline bool online_softmax(float (&scores)[kKeys / 8][4], SoftmaxRows& rows, float (&factor)[2], float scale_log2) {
  float highest[2];
  bool grows = false;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float value = rows.highest[half];
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n) value = fmaxf(value, fmaxf(scores[n][2 * half], scores[n][2 * half + 1]));
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 2));
    grows |= (value - rows.highest[half]) * scale_log2 > 8;
    highest[half] = value;
    factor[half] = 1;
  }
  grows = __any_sync(~0u, grows);
  if (grows) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      factor[half] = exp2_fast((rows.highest[half] - highest[half]) * scale_log2);
      rows.highest[half] = highest[half];
      rows.sum[half] *= factor[half];
    }
  }
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float shift = -rows.highest[half] * scale_log2;
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 2 * half; i < 2 * half + 2; ++i) {
        scores[n][i] = exp2_fast(fmaf(scores[n][i], scale_log2, shift));
        rows.sum[half] += scores[n][i];
      }
  }
  return grows;
}

template <class T, int H, bool kBounded>
__global__ void __launch_bounds__(kGroups<H>* kWarpgroup, 1)
    hopper_forward_kernel(const T* __restrict__ qkv, AttentionLayout layout, BlockOrder order, T* __restrict__ out, float* __restrict__ lse) {
  constexpr int kThreads = kGroups<H> * kWarpgroup, kBlockRows = kRows<H>;
  constexpr int kLoaders = kThreads == 384 ? 256 : kThreads;  // whose number of rows at a time divides a tile of keys
  using Memory = ForwardMemory<H>;
  using QueryTile = typename Memory::QueryTile;
  using KeyTile = typename Memory::KeyTile;
  TRIREME_PANEL_SHARED(Memory, memory);
  const auto [head, place] = order.place();
  const int pair = head / layout.group, first_row = (order.tiles - 1 - place) * kBlockRows, sequence = layout.sequence;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarp, group_row = thread / kWarpgroup * kGroupRows;
  const int lane_row = group_row + thread % kWarpgroup / kWarp * 16 + lane / 4;
  const int first_key = kBounded ? layout.first_key(head / layout.heads, first_row) / kKeys * kKeys : 0;  // so that tiles do not depend on blocks
  const int end_key = first_row + kBlockRows < sequence ? first_row + kBlockRows : sequence;

  const T* const from = qkv + layout.key(pair);
  const auto load = [&](unsigned char* tile, int key, int64_t offset) {
    if (key < end_key && (kLoaders == kThreads || thread < kLoaders))
      load_panels<H, kKeys, kLoaders>(tile, from + key * layout.columns + offset, layout.columns, end_key - key, thread);
  };
  if (kLoaders == kThreads || thread < kLoaders) {
    const int rows = sequence - first_row;
    const T* const queries = qkv + layout.query(head) + first_row * layout.columns;
    load_panels<H, kBlockRows, kLoaders>(memory->queries, queries, layout.columns, rows, thread);
  }
  load(memory->keys[0], first_key, 0);
  cp_async_commit();
  load(memory->values[0], first_key, layout.to_values);
  load(memory->keys[1], first_key + kKeys, 0);
  cp_async_commit();

  int reach[2] = {};
  if constexpr (kBounded) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = first_row + lane_row + 8 * half;
      reach[half] = first_row + lane_row - layout.first_key(head / layout.heads, row);
    }
  }
  float sums[H / 8][4], scores[kKeys / 8][4];
#pragma unroll
  for (int n = 0; n < H / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = 0;
  SoftmaxRows rows;
  rows.highest[0] = rows.highest[1] = AttentionLayout::first_maximum(kBounded), rows.sum[0] = rows.sum[1] = 0;
  uint32_t probabilities[kKeys / 16][4];
  float factor[2];
  const uint32_t queries = shared_address(memory->queries);
  const auto add_scores = [&](const unsigned char* tile) {
    const uint32_t keys = shared_address(tile);
#pragma unroll
    for (int step = 0; step < H / 16; ++step)
      wgmma<T, kKeys, false, false>(scores, QueryTile::along_columns(queries, group_row, step), KeyTile::along_columns(keys, 0, step), step > 0);
    wgmma_commit();
  };
  const auto add_values = [&](const unsigned char* tile) {
    const uint32_t values = shared_address(tile);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) wgmma<T, H, true>(sums, probabilities[step], KeyTile::along_rows(values, 0, step), true);
    wgmma_commit();
  };
  // Of the tile of keys from `key` on. A warpgroup that sees all of them needs no mask.
  const auto softmax = [&](int key) {
    bool partly = key + kKeys - 1 > first_row + group_row;
    if constexpr (kBounded) partly |= key < first_row + lane_row - reach[0] || key < first_row + lane_row - reach[1];
    if (kBounded ? __any_sync(~0u, partly) : partly) mask<kBounded>(scores, first_row + lane_row - key - lane % 4 * 2, reach);
    return online_softmax(scores, rows, factor, layout.scale_log2);
  };
  const auto rescale = [&] {
#pragma unroll
    for (int n = 0; n < H / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] *= factor[i / 2];
  };

  cp_async_wait<1>();
  fence_proxy_async();
  __syncthreads();  // queries and the first keys have arrived
  wgmma_fence();
  add_scores(memory->keys[0]);
  wgmma_wait<0>();
  pin(scores);
  softmax(first_key);  // the sums are still zero
  pack_operands<T, kKeys / 8>(probabilities, scores);
  int slot = 0;
  int key = first_key;
  for (; key + kKeys < end_key; key += kKeys, slot ^= 1) {
    cp_async_wait<0>();
    fence_proxy_async();
    __syncthreads();  // these values and the next keys have arrived, and all threads have ended the previous step
    load(memory->values[slot ^ 1], key + kKeys, layout.to_values);
    load(memory->keys[slot], key + 2 * kKeys, 0);
    cp_async_commit();
    wgmma_fence();
    add_scores(memory->keys[slot ^ 1]);
    add_values(memory->values[slot]);
    wgmma_wait<1>();
    pin(scores);
    const bool grows = softmax(key + kKeys);
    pin(scores);
    wgmma_wait<0>();
    pin(sums);
    if (grows) rescale();
    pack_operands<T, kKeys / 8>(probabilities, scores);
  }
  cp_async_wait<0>();
  fence_proxy_async();
  __syncthreads();  // the last values have arrived
  wgmma_fence();
  add_values(memory->values[slot]);
  wgmma_wait<0>();
  pin(sums);

#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float sum = rows.sum[half];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    const int row = first_row + lane_row + 8 * half;
    if (lane % 4 == 0 && row < sequence) lse[int64_t{head} * sequence + row] = (rows.highest[half] * layout.scale_log2 + log2f(sum)) * kLn2;
    rows.sum[half] = 1 / sum;
  }
  // No product has read the queries since the last barrier: the results are staged there.
  put_panels<T, H, kBlockRows>(memory->queries, group_row, sums, thread, [&](int half) { return rows.sum[half]; });
  __syncwarp();
  const int warp_row = thread / kWarp * 16;
  store_panels<H, kBlockRows, kWarp>(lane, memory->queries, warp_row, warp_row + 16, out + layout.output(head) + first_row * layout.out_columns,
                                     layout.out_columns, sequence - first_row);
}

template <class T, int H>
void forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse) {
  const BlockOrder order(shape.batch * shape.heads, ceil_div(shape.sequence, kRows<H>), shape.sequence * H * 4 * shape.kv_heads / shape.heads);
  dispatch_bounded(layout, [&](auto bounded) {
    launch(ctx, hopper_forward_kernel<T, H, bounded>, {order.grid(), dim3(kGroups<H> * kWarpgroup), sizeof(ForwardMemory<H>)}, qkv, layout, order,
           out, lse);
  });
}

}  // namespace

template <class T>
void hopper_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse) {
  if (shape.head_size == 64) return forward<T, 64>(ctx, qkv, shape, layout, out, lse);
  forward<T, 128>(ctx, qkv, shape, layout, out, lse);
}
template void hopper_forward(const Context&, const bfloat16*, const AttentionShape&, const AttentionLayout&, bfloat16*, float*);
template void hopper_forward(const Context&, const float16*, const AttentionShape&, const AttentionLayout&, float16*, float*);

}  // namespace trireme::cuda
