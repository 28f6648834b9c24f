// Flash attention 2 (Dao 2023, arXiv:2307.08691), backward, on tensor cores, without atomics: bit-identical on every run. One kernel owns keys and
// sums their gradients over queries, the other owns queries and sums over keys; both recompute scores and their gradients. This takes seven products
// of T x T x H. Five would suffice if blocks added to each other's sums: two are the price of a fixed order without memory for partial sums.
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_tiles.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 128;

// ---- keys and values: a warp owns 16 keys and computes transposed scores, whose fragments are directly operands of both sums ----

constexpr int kKeys = 64;  // per block

/// kQueries: per step.
template <int H, int kQueries>
struct KeyMemory {
  static_assert(kKeys % kQueries == 0 && kStatisticsTile % kQueries == 0);
  unsigned char keys[kKeys * Tile<H>::kRowBytes], values[kKeys * Tile<H>::kRowBytes];
  unsigned char queries[2][kQueries * Tile<H>::kRowBytes], douts[2][kQueries * Tile<H>::kRowBytes];  // of this step and the next
  float lse[2][kQueries], delta[2][kQueries];
};

/// scores (transposed) -> probabilities.
template <int kN>
__device__ inline void probabilities_of_queries(Fragments<1, kN>& scores, const float* lse, float scale_log2) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) scores[0][n][i] = exp2_fast(fmaf(scores[0][n][i], scale_log2, -lse[8 * n + column + i % 2]));
}

/// Masks the keys outside each query's band. `ahead` = first query - first key of the tiles; `row` is the warp's first row in the tile of keys.
template <int kN, class Band>
__device__ inline void mask_queries(Fragments<1, kN>& probabilities, int ahead, int row, Band band) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, behind = row + lane / 4 - lane % 4 * 2 - ahead;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = 8 * n + i % 2 - i / 2 * 8;
      if (query < behind || band.beyond(query - behind)) probabilities[0][n][i] = 0;
    }
}

/// ds = p (dp - delta)
template <int kN>
__device__ inline void score_gradients_of_queries(Fragments<1, kN>& dp, const Fragments<1, kN>& p, const float* delta) {
  const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) dp[0][n][i] = p[0][n][i] * (dp[0][n][i] - delta[8 * n + column + i % 2]);
}

template <class T, int H, int kQueries, class Band>
__global__ void __launch_bounds__(kThreads, 2)
    flash_key_gradients_kernel(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse, const float* __restrict__ delta,
                               AttentionLayout layout, BlockOrder order, int first_pair, T* __restrict__ dqkv, Band band) {
  using Loader = TileLoader<T, H, kThreads>;
  constexpr int kN = kQueries / 8;
  using Memory = KeyMemory<H, kQueries>;
  TRIREME_DYNAMIC_SHARED(Memory, memory);
  const auto [item, tile] = order.place();
  const int pair = first_pair + item, first_key = tile * kKeys, sequence = layout.sequence;
  const int last_query = band.last_query(first_key + kKeys - 1, sequence);
  const int thread = static_cast<int>(threadIdx.x), warp_row = thread / kWarp * 16;

  // A block's steps: the query heads of its pair in order, and for each the tiles of queries from the diagonal to the last that sees a key.
  const T* from_queries = Loader::begin(qkv + layout.query(pair * layout.group) + first_key * layout.columns, layout.columns);
  const T* from_douts = Loader::begin(dout + layout.output(pair * layout.group) + first_key * layout.out_columns, layout.out_columns);
  const auto load = [&](int buffer, int head, int query) {
    Loader::template load<kQueries>(memory->queries[buffer], from_queries, layout.columns, sequence - query);
    Loader::template load<kQueries>(memory->douts[buffer], from_douts, layout.out_columns, sequence - query);
    if (thread < kQueries / 4) {
      const int64_t at = (item * layout.group + head) * statistics_stride(sequence) + query + 4 * thread;
      cp_async_16(&memory->lse[buffer][4 * thread], lse + at, true);
      cp_async_16(&memory->delta[buffer][4 * thread], delta + at, true);
    }
    cp_async_commit();
  };
  const auto load_after = [&](int buffer, int head, int query) {
    query += kQueries;
    from_queries += kQueries * layout.columns;
    from_douts += kQueries * layout.out_columns;
    if (query > last_query) {
      from_queries += H - (query - first_key) * layout.columns;
      from_douts += H - (query - first_key) * layout.out_columns;
      query = first_key;
      ++head;
    }
    if (head < layout.group) load(buffer, head, query);
  };
  Loader::template load<kKeys>(memory->keys, Loader::begin(qkv + layout.key(pair) + first_key * layout.columns, layout.columns), layout.columns,
                               sequence - first_key);
  Loader::template load<kKeys>(memory->values, Loader::begin(qkv + layout.value(pair) + first_key * layout.columns, layout.columns), layout.columns,
                               sequence - first_key);
  load(0, 0, first_key);

  Fragments<1, H / 8> dkeys, dvalues;
  clear<1, H / 8>(dkeys);
  clear<1, H / 8>(dvalues);
  unsigned char* const warp_keys = memory->keys + warp_row * Tile<H>::kRowBytes;
  unsigned char* const warp_values = memory->values + warp_row * Tile<H>::kRowBytes;
  int buffer = 0;
  for (int head = 0; head < layout.group; ++head)
    for (int query = first_key; query <= last_query; query += kQueries, buffer ^= 1) {
      cp_async_wait<0>();
      __syncthreads();  // this step's tiles have arrived, and no thread still reads the previous step's tiles
      load_after(buffer ^ 1, head, query);

      Fragments<1, kN> p, dp;
      multiply_rows<T, H, 1, kN>(p, warp_keys, memory->queries[buffer]);
      probabilities_of_queries<kN>(p, memory->lse[buffer], layout.scale_log2);
      if (query < first_key + kKeys || band.beyond(query + kQueries - 1 - first_key - warp_row))
        mask_queries<kN>(p, query - first_key, warp_row, band);
      add_product<T, H, 1, kN>(dvalues, p, memory->douts[buffer]);
      multiply_rows<T, H, 1, kN>(dp, warp_values, memory->douts[buffer]);
      score_gradients_of_queries<kN>(dp, p, memory->delta[buffer]);
      add_product<T, H, 1, kN>(dkeys, dp, memory->queries[buffer]);
    }

  const auto [last_item, last_tile] = order.place(reread_block());
  const int last_pair = first_pair + last_item, row = last_tile * kKeys + warp_row;
  const auto store = [&](const Fragments<1, H / 8>& sums, unsigned char* rows, int64_t offset, float factor) {
    store_rows<H, 1>(
        sums, [factor](int, int) { return factor; }, rows, dqkv + offset + row * layout.columns, layout.columns, sequence - row);
  };
  store(dkeys, warp_keys, layout.key(last_pair), layout.scale);
  store(dvalues, warp_values, layout.value(last_pair), 1);
}

// ---- queries: a warp owns 32, so that each fragment of keys or values read from shared memory feeds two products ----

constexpr int kRows = 128;  // queries per block
constexpr int kM = 2;       // tiles of 16 queries per warp

/// kStepKeys: per step.
template <int H, int kStepKeys>
struct QueryMemory {
  unsigned char queries[kRows * Tile<H>::kRowBytes], douts[kRows * Tile<H>::kRowBytes];
  unsigned char keys[2][kStepKeys * Tile<H>::kRowBytes], values[2][kStepKeys * Tile<H>::kRowBytes];  // of this step and the next
  float lse[kRows], delta[kRows];                                                                    // kept here to save registers
};

/// scores -> probabilities, which are zero outside each query's band. `ahead` = first row - first key of the fragments.
template <int kN, class Band>
__device__ inline void probabilities_of_keys(Fragments<kM, kN>& scores, const float* lse, float scale_log2, int ahead, Band band) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = exp2_fast(fmaf(scores[m][n][i], scale_log2, -lse[16 * m + i / 2 * 8 + lane / 4]));
  if (ahead >= 8 * kN - 1 && !band.beyond(ahead + 16 * kM - 1)) return;
  ahead += lane / 4 - lane % 4 * 2;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = 8 * n + i % 2 - 16 * m - i / 2 * 8;
        if (key > ahead || band.beyond(ahead - key)) scores[m][n][i] = 0;
      }
}

/// ds = p (dp - delta)
template <int kN>
__device__ inline void score_gradients_of_keys(Fragments<kM, kN>& dp, const Fragments<kM, kN>& p, const float* delta) {
  const int row = static_cast<int>(threadIdx.x) % kWarp / 4;
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[m][n][i] = p[m][n][i] * (dp[m][n][i] - delta[16 * m + i / 2 * 8 + row]);
}

template <class T, int H, int kStepKeys, class Band>
__global__ void __launch_bounds__(kThreads, 2)
    flash_query_gradients_kernel(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse,
                                 const float* __restrict__ delta, AttentionLayout layout, BlockOrder order, int first_head, T* __restrict__ dqkv,
                                 Band band) {
  using Loader = TileLoader<T, H, kThreads>;
  constexpr int kN = kStepKeys / 8;
  using Memory = QueryMemory<H, kStepKeys>;
  TRIREME_DYNAMIC_SHARED(Memory, memory);
  const auto [item, place] = order.place();
  const int head = first_head + item, pair = head / layout.group, sequence = layout.sequence;
  const int first_row = (order.tiles - 1 - place) * kRows;
  const int thread = static_cast<int>(threadIdx.x), warp_rows = thread / kWarp * 16 * kM;
  const int first_key = band.first_key(first_row);
  int left = (first_row + kRows < sequence ? first_row + kRows : sequence) - first_key;  // keys visible to any row, from this step's first key on
  int ahead = first_row + warp_rows - first_key;                                         // the warp's first row - the step's first key

  const T* from = Loader::begin(qkv + layout.key(pair) + first_key * layout.columns, layout.columns);
  const auto load = [&](int buffer, int rows) {
    if (rows > 0) {
      Loader::template load<kStepKeys>(memory->keys[buffer], from, layout.columns, rows);
      Loader::template load<kStepKeys>(memory->values[buffer], from + layout.to_values, layout.columns, rows);
      from += kStepKeys * layout.columns;
    }
    cp_async_commit();
  };
  Loader::template load<kRows>(memory->queries, Loader::begin(qkv + layout.query(head) + first_row * layout.columns, layout.columns), layout.columns,
                               sequence - first_row);
  Loader::template load<kRows>(memory->douts, Loader::begin(dout + layout.output(head) + first_row * layout.out_columns, layout.out_columns),
                               layout.out_columns, sequence - first_row);
  load(0, left);

  // Rows beyond the sequence may read any finite value: they are not stored.
  const int64_t query = item * statistics_stride(sequence) + (first_row + thread < sequence ? first_row + thread : 0);
  memory->lse[thread] = lse[query];
  memory->delta[thread] = delta[query];

  Fragments<kM, H / 8> dqueries;
  clear<kM, H / 8>(dqueries);
  unsigned char* const queries = memory->queries + warp_rows * Tile<H>::kRowBytes;
  const unsigned char* const douts = memory->douts + warp_rows * Tile<H>::kRowBytes;
  for (int buffer = 0; left > 0; left -= kStepKeys, ahead -= kStepKeys, buffer ^= 1) {
    cp_async_wait<0>();
    __syncthreads();  // this step's tiles have arrived, and no thread still reads the previous step's tiles
    load(buffer ^ 1, left - kStepKeys);
    if (ahead <= -16 * kM || band.beyond(ahead - (kStepKeys - 1))) continue;  // no row of this warp sees these keys
    Fragments<kM, kN> p, dp;
    multiply_rows<T, H, kM, kN>(p, queries, memory->keys[buffer]);
    probabilities_of_keys<kN>(p, memory->lse + warp_rows, layout.scale_log2, ahead, band);
    multiply_rows<T, H, kM, kN>(dp, douts, memory->values[buffer]);
    score_gradients_of_keys<kN>(dp, p, memory->delta + warp_rows);
    add_product<T, H, kM, kN>(dqueries, dp, memory->keys[buffer]);
  }
  const auto [last_item, last_place] = order.place(reread_block());
  const int row = (order.tiles - 1 - last_place) * kRows + warp_rows;
  store_rows<H, kM>(
      dqueries, [&](int, int) { return layout.scale; }, queries, dqkv + layout.query(first_head + last_item) + row * layout.columns, layout.columns,
      sequence - row);
}

template <class T, int H, int kQueries, int kStepKeys>
void launch_kernels(const Context& ctx, const AttentionBackward<T>& t, const AttentionShape& shape) {
  const AttentionLayout layout(shape);
  const BlockOrder keys(t.pairs, ceil_div(shape.sequence, kKeys), shape.sequence * H * 4 * layout.group);
  const BlockOrder queries(t.pairs * layout.group, ceil_div(shape.sequence, kRows), shape.sequence * H * 4 / layout.group);
  dispatch_band(layout, [&]<class Band>(Band band) {
    launch(ctx, flash_key_gradients_kernel<T, H, kQueries, Band>, {keys.grid(), dim3(kThreads), sizeof(KeyMemory<H, kQueries>)}, t.dout, t.qkv, t.lse,
           t.delta, layout, keys, static_cast<int>(t.first_pair), t.dqkv, band);
    launch(ctx, flash_query_gradients_kernel<T, H, kStepKeys, Band>, {queries.grid(), dim3(kThreads), sizeof(QueryMemory<H, kStepKeys>)}, t.dout,
           t.qkv, t.lse, t.delta, layout, queries, static_cast<int>(t.first_pair * layout.group), t.dqkv, band);
  });
}

/// True if the shared memory of a multiprocessor holds two blocks of both kernels. CUDA takes 1 KB more for each block.
template <int H, int kQueries, int kStepKeys>
bool two_blocks_fit(const Context& ctx) {
  constexpr int64_t kBytes = std::max(sizeof(KeyMemory<H, kQueries>), sizeof(QueryMemory<H, kStepKeys>));
  int available = 0;
  check(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerMultiprocessor, ctx.gpu->index()), "cudaDeviceGetAttribute");
  return 2 * (kBytes + 1024) <= available;
}

template <class T, int H>
void backward(const Context& ctx, const AttentionBackward<T>& t, const AttentionShape& shape) {
  // Limited so that a warp's sums [32, H], probabilities and their gradients [32, keys] fit in registers.
  constexpr int kQueries = 64, kStepKeys = H <= 64 ? 64 : 32;
  if constexpr (H == 128) {
    // sm_80 has 164 KB of shared memory: half the step makes room for a second block, without which one warp a scheduler would wait for each tile.
    // Where neither fits twice (100 KB on sm_86 and sm_89), the larger step reads fewer operands from shared memory.
    if (!two_blocks_fit<H, kQueries, kStepKeys>(ctx) && two_blocks_fit<H, kQueries / 2, kStepKeys / 2>(ctx))
      return launch_kernels<T, H, kQueries / 2, kStepKeys / 2>(ctx, t, shape);
  }
  launch_kernels<T, H, kQueries, kStepKeys>(ctx, t, shape);
}

}  // namespace

template <class T>
void flash_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape) {
  switch (shape.head_size) {
    case 32: return backward<T, 32>(ctx, tensors, shape);
    case 64: return backward<T, 64>(ctx, tensors, shape);
    case 96: return backward<T, 96>(ctx, tensors, shape);
    default: return backward<T, 128>(ctx, tensors, shape);
  }
}
template void flash_backward(const Context&, const AttentionBackward<bfloat16>&, const AttentionShape&);
template void flash_backward(const Context&, const AttentionBackward<float16>&, const AttentionShape&);

}  // namespace trireme::cuda
