// Flash attention 2 (Dao 2023, arXiv:2307.08691), forward, on tensor cores: a block owns 128 queries of one head and walks the keys up to the diagonal.
// A warp owns 32 queries, so that each fragment of keys or values read from shared memory feeds two products: with 16 the reads would take longer than
// the products. Scores and probabilities stay in registers.
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_tiles.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRows = 128;  // queries of a block
constexpr int kM = 2;       // tiles of 16 queries of a warp

/// Keys of a step: as many as leave sums [32, H] and scores [32, keys] of a warp in registers.
template <int H>
constexpr int kKeys = H <= 64 ? 128 : 64;

/// Keys and values take turns in a ring of three tiles: two are on their way while the third is computed with.
template <int H>
constexpr int kForwardBytes = (kRows + 3 * kKeys<H>)*Tile<H>::kRowBytes;

/// Running maximum (of raw scores) and sum of the exponentials of a lane's rows. The sum is the lane's own share until the end.
struct SoftmaxRows {
  float highest[kM][2], sum[kM][2];
};

/// Scores -> exp2((score - maximum) * scale_log2). The maximum follows only where it grew by a factor of 2^8 in the exponential: neither fp32 sums nor
/// bf16 probabilities lose precision by being larger, and most steps need not touch the sums. The first step sets it, as no row is without key 0.
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

/// No query sees a later key. `ahead` = first row - first key of the fragments.
template <int kN>
__device__ inline void mask(Fragments<kM, kN>& scores, int ahead) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  ahead += lane / 4 - lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        if (8 * n + i % 2 - 16 * m - i / 2 * 8 > ahead) scores[m][n][i] = -INFINITY;
}

template <int H>
__global__ void __launch_bounds__(kThreads, 2) flash_forward_kernel(const bfloat16* __restrict__ qkv, AttentionLayout layout, BlockOrder order,
                                                                    bfloat16* __restrict__ out, float* __restrict__ lse) {
  constexpr int kN = kKeys<H> / 8, kTileBytes = kKeys<H> * Tile<H>::kRowBytes;
  TRIREME_DYNAMIC_SHARED(unsigned char, queries);
  unsigned char* const ring = queries + kRows * Tile<H>::kRowBytes;
  const auto [head, place] = order.place();
  const int first_row = (static_cast<int>(order.tiles) - 1 - place) * kRows;
  const int warp_rows = static_cast<int>(threadIdx.x) / kWarp * 16 * kM, warp_row = first_row + warp_rows;
  const int end = first_row + kRows < layout.sequence ? first_row + kRows : layout.sequence;  // of the keys any row sees

  using Loader = TileLoader<H, kThreads>;
  const int pair = head / layout.group;
  const int64_t value_offset = layout.value(pair) - layout.key(pair);
  const bfloat16* from = Loader::begin(qkv + layout.key(pair), layout.columns);
  int slot = 0;  // byte offset in the ring of the tile to compute with; the one before it is loaded next
  const auto load_keys = [&](int to, int key) {
    if (key < end) Loader::template load<kKeys<H>>(ring + to, from, layout.columns, layout.sequence - key);
    cp_async_commit();
  };
  const auto load_values = [&](int to, int key) {
    if (key < end) Loader::template load<kKeys<H>>(ring + to, from + value_offset, layout.columns, layout.sequence - key);
    cp_async_commit();
    from += kKeys<H> * layout.columns;
  };
  Loader::template load<kRows>(queries, Loader::begin(qkv + layout.query(head) + first_row * layout.columns, layout.columns), layout.columns,
                               layout.sequence - first_row);
  load_keys(0, 0);
  load_values(kTileBytes, 0);

  Fragments<kM, H / 8> sums;
  clear<kM, H / 8>(sums);
  SoftmaxRows rows;
#pragma unroll
  for (int m = 0; m < kM; ++m) rows.highest[m][0] = rows.highest[m][1] = -INFINITY, rows.sum[m][0] = rows.sum[m][1] = 0;
  const auto after = [](int at) { return at == 2 * kTileBytes ? 0 : at + kTileBytes; };
  const auto before = [](int at) { return at == 0 ? 2 * kTileBytes : at - kTileBytes; };
  for (int first_key = 0; first_key < end; first_key += kKeys<H>) {
    const bool visible = first_key < warp_row + 16 * kM;  // to any row of this warp
    Fragments<kM, kN> scores;
    cp_async_wait<1>();
    __syncthreads();  // the keys are there, and all are done with the tile that is loaded over
    load_keys(before(slot), first_key + kKeys<H>);
    if (visible) {
      multiply_rows<H, kM, kN>(scores, queries + warp_rows * Tile<H>::kRowBytes, ring + slot);
      if (first_key + kKeys<H> - 1 > warp_row) mask<kN>(scores, warp_row - first_key);
      online_softmax<H, kN>(scores, sums, rows, layout.scale_log2);
    }
    slot = after(slot);
    cp_async_wait<1>();
    __syncthreads();  // likewise the values
    load_values(before(slot), first_key + kKeys<H>);
    if (visible) add_product<H, kM, kN>(sums, scores, ring + slot);
    slot = after(slot);
  }

  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[m][half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int row = warp_row + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && row < layout.sequence)
        lse[int64_t{head} * layout.sequence + row] = (rows.highest[m][half] * layout.scale_log2 + log2f(sum)) * kLn2;
      rows.sum[m][half] = 1 / sum;
    }
  store_rows<H, kM>(
      sums, [&](int m, int half) { return rows.sum[m][half]; }, queries + warp_rows * Tile<H>::kRowBytes,
      out + layout.output(head) + warp_row * layout.out_columns, layout.out_columns, layout.sequence - warp_row);
}

template <int H>
void forward(const Context& ctx, const bfloat16* qkv, const AttentionShape& shape, bfloat16* out, float* lse) {
  const BlockOrder order(shape.batch * shape.heads, ceil_div(shape.sequence, kRows), shape.sequence * H * 4 * shape.kv_heads / shape.heads);
  launch(ctx, flash_forward_kernel<H>, {order.grid(), dim3(kThreads), kForwardBytes<H>}, qkv, AttentionLayout(shape), order, out, lse);
}

}  // namespace

void flash_forward(const Context& ctx, const bfloat16* qkv, const AttentionShape& shape, bfloat16* out, float* lse) {
  switch (shape.head_size) {
    case 32: return forward<32>(ctx, qkv, shape, out, lse);
    case 64: return forward<64>(ctx, qkv, shape, out, lse);
    case 96: return forward<96>(ctx, qkv, shape, out, lse);
    default: return forward<128>(ctx, qkv, shape, out, lse);
  }
}

}  // namespace trireme::cuda
