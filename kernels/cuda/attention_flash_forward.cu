// Flash attention 2 (Dao 2023, arXiv:2307.08691), forward, on tensor cores: each block owns 128 queries of one head and iterates over the keys they
// see. A warp owns 32 queries, so that each fragment of keys or values read from shared memory feeds two products: with 16 queries the reads would
// take longer than the products. Scores and probabilities stay in registers.
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_tiles.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 128;  // queries per block
constexpr int kM = 2;       // tiles of 16 queries per warp

/// Keys per step: limited so that a warp's sums [32, H] and scores [32, keys] fit in registers.
template <int H>
constexpr int kKeys = H <= 64 ? 128 : 64;

/// Keys and values alternate in a ring of three tiles: two are being loaded while the third is used.
template <int H>
struct ForwardMemory {
  static constexpr int kTileBytes = kKeys<H> * Tile<H>::kRowBytes;
  unsigned char queries[kRows * Tile<H>::kRowBytes];
  unsigned char ring[3 * kTileBytes];
  int head, first_row;  // kept here until the end to save registers
};
/// The same if queries attend to less than all keys before them.
template <int H>
struct BoundedForwardMemory : ForwardMemory<H> {
  int reach[kRows];  ///< of each query: keys that it attends to before the first query of its warp; negative if its first key is a later token
};

/// Running maximum (of raw scores) and sum of the exponentials of a lane's rows. The sum covers only the lane's own keys until the end.
struct SoftmaxRows {
  float highest[kM][2], sum[kM][2];
};

/// Replaces scores by exp2((score - maximum) * scale_log2). The maximum is updated only if an exponential would exceed 2^8: neither fp32 sums nor
/// 16-bit probabilities lose precision by being larger, and most steps need not rescale the sums. The first step with a visible key sets it.
template <int H, int kN>
__device__ inline void online_softmax(Fragments<kM, kN>& scores, Fragments<kM, H / 8>& out, SoftmaxRows& rows, float scale_log2) {
  float highest[kM][2];
  bool grows = false;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float value = rows.highest[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) value = fmaxf(value, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
      value = fmaxf(value, __shfl_xor_sync(~0u, value, 2));
      grows |= (value - rows.highest[m][half]) * scale_log2 > 8;
      highest[m][half] = value;
    }
  if (__any_sync(~0u, grows)) {
#pragma unroll
    for (int m = 0; m < kM; ++m)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float factor = exp2_fast((rows.highest[m][half] - highest[m][half]) * scale_log2);
        rows.highest[m][half] = highest[m][half];
        rows.sum[m][half] *= factor;
#pragma unroll
        for (int n = 0; n < H / 8; ++n) {
          out[m][n][2 * half] *= factor;
          out[m][n][2 * half + 1] *= factor;
        }
      }
  }
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float shift = -rows.highest[m][half] * scale_log2;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i) {
          scores[m][n][i] = exp2_fast(fmaf(scores[m][n][i], scale_log2, shift));
          rows.sum[m][half] += scores[m][n][i];
        }
    }
}

/// Masks the keys that a query does not attend to. `ahead` = first row - first key of the fragments. `reach`: of the rows, null if not bounded.
template <int kN, bool kBounded>
__device__ inline void mask(Fragments<kM, kN>& scores, int ahead, const int* reach) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ahead -= lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = 16 * m + 8 * half + lane / 4, first = kBounded ? ahead - reach[row] : 0;
#pragma unroll
      for (int n = 0; n < kN; ++n)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = 8 * n + i;
          if (key > ahead + row || (kBounded && key < first)) scores[m][n][2 * half + i] = -INFINITY;
        }
    }
}

template <class T, int H, bool kBounded>
__global__ void __launch_bounds__(kThreads, 2)
    flash_forward_kernel(const T* __restrict__ qkv, AttentionLayout layout, BlockOrder order, T* __restrict__ out, float* __restrict__ lse) {
  using Loader = TileLoader<T, H, kThreads>;
  using Memory = std::conditional_t<kBounded, BoundedForwardMemory<H>, ForwardMemory<H>>;
  constexpr int kN = kKeys<H> / 8, kTileBytes = Memory::kTileBytes;
  TRIREME_DYNAMIC_SHARED(Memory, memory);
  const auto [head, place] = order.place();
  const int pair = head / layout.group, first_row = (order.tiles - 1 - place) * kRows, sequence = layout.sequence;
  const int thread = static_cast<int>(threadIdx.x), warp_rows = thread / kWarp * 16 * kM;
  const int first_key = kBounded ? layout.first_key(head / layout.heads, first_row) : 0;
  int left = (first_row + kRows < sequence ? first_row + kRows : sequence) - first_key;  // keys visible to any row, from this step's first key on
  int ahead = first_row + warp_rows - first_key;                                         // the warp's first row - the step's first key

  const T* from = Loader::begin(qkv + layout.key(pair) + first_key * layout.columns, layout.columns);
  const auto load_keys = [&](int to, int rows) {
    if (rows > 0) Loader::template load<kKeys<H>>(memory->ring + to, from, layout.columns, rows);
    cp_async_commit();
  };
  const auto load_values = [&](int to, int rows) {
    if (rows > 0) Loader::template load<kKeys<H>>(memory->ring + to, from + layout.to_values, layout.columns, rows);
    cp_async_commit();
    from += kKeys<H> * layout.columns;
  };
  Loader::template load<kRows>(memory->queries, Loader::begin(qkv + layout.query(head) + first_row * layout.columns, layout.columns), layout.columns,
                               sequence - first_row);
  load_keys(0, left);
  load_values(kTileBytes, left);
  if (thread == 0) memory->head = head, memory->first_row = first_row;
  const int* reach = nullptr;  // of the warp's rows
  if constexpr (kBounded) {
    static_assert(kRows == kThreads);
    memory->reach[thread] = first_row + warp_rows - layout.first_key(head / layout.heads, first_row + thread);
    reach = memory->reach + warp_rows;
  }

  Fragments<kM, H / 8> sums;
  clear<kM, H / 8>(sums);
  SoftmaxRows rows;
#pragma unroll
  for (int m = 0; m < kM; ++m)
    rows.highest[m][0] = rows.highest[m][1] = AttentionLayout::first_maximum(kBounded), rows.sum[m][0] = rows.sum[m][1] = 0;
  const auto after = [](int at) { return at == 2 * kTileBytes ? 0 : at + kTileBytes; };
  const auto before = [](int at) { return at == 0 ? 2 * kTileBytes : at - kTileBytes; };
  int slot = 0;  // byte offset of the current tile in the ring; the tile before it is loaded next
  unsigned char* const queries = memory->queries + warp_rows * Tile<H>::kRowBytes;
  for (; left > 0; left -= kKeys<H>, ahead -= kKeys<H>) {
    Fragments<kM, kN> scores;
    cp_async_wait<1>();
    __syncthreads();  // the keys have arrived, and no thread still reads the tile that is overwritten next
    const bool visible = ahead > -16 * kM && (!kBounded || ahead - reach[0] < kKeys<H>);  // to any row of this warp
    load_keys(before(slot), left - kKeys<H>);
    if (visible) {
      multiply_rows<T, H, kM, kN>(scores, queries, memory->ring + slot);
      if (ahead < kKeys<H> - 1 || (kBounded && ahead > reach[16 * kM - 1])) mask<kN, kBounded>(scores, ahead, reach);
      online_softmax<H, kN>(scores, sums, rows, layout.scale_log2);
    }
    slot = after(slot);
    cp_async_wait<1>();
    __syncthreads();  // the same for the values
    load_values(before(slot), left - kKeys<H>);
    if (visible) add_product<T, H, kM, kN>(sums, scores, memory->ring + slot);
    slot = after(slot);
  }

  const int item = memory->head, warp_row = memory->first_row + warp_rows;
  const int lane = thread % kWarp;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[m][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = warp_row + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && row < sequence) lse[int64_t{item} * sequence + row] = (rows.highest[m][half] * layout.scale_log2 + log2f(sum)) * kLn2;
      rows.sum[m][half] = 1 / sum;
    }
  store_rows<H, kM>(
      sums, [&](int m, int half) { return rows.sum[m][half]; }, queries, out + layout.output(item) + warp_row * layout.out_columns,
      layout.out_columns, sequence - warp_row);
}

template <class T, int H>
void forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse) {
  const BlockOrder order(shape.batch * shape.heads, ceil_div(shape.sequence, kRows), shape.sequence * H * 4 * shape.kv_heads / shape.heads);
  dispatch_bounded(layout, [&](auto bounded) {
    const int64_t shared = bounded ? sizeof(BoundedForwardMemory<H>) : sizeof(ForwardMemory<H>);
    launch(ctx, flash_forward_kernel<T, H, bounded>, {order.grid(), dim3(kThreads), shared}, qkv, layout, order, out, lse);
  });
}

}  // namespace

template <class T>
void flash_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse) {
#ifdef TRIREME_HOPPER
  if (uses_hopper(ctx, shape)) return hopper_forward(ctx, qkv, shape, layout, out, lse);
#endif
  switch (shape.head_size) {
    case 32: return forward<T, 32>(ctx, qkv, shape, layout, out, lse);
    case 64: return forward<T, 64>(ctx, qkv, shape, layout, out, lse);
    case 96: return forward<T, 96>(ctx, qkv, shape, layout, out, lse);
    default: return forward<T, 128>(ctx, qkv, shape, layout, out, lse);
  }
}
template void flash_forward(const Context&, const bfloat16*, const AttentionShape&, const AttentionLayout&, bfloat16*, float*);
template void flash_forward(const Context&, const float16*, const AttentionShape&, const AttentionLayout&, float16*, float*);

}  // namespace trireme::cuda
