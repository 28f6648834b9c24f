// Flash attention 2 (Dao 2023, arXiv:2307.08691), backward, on tensor cores, with five products of T x T x H: scores and their gradients once, and the
// gradients of queries, keys and values. A block owns a tile of keys of one pair and walks over the queries that see it, from the last tile to the
// diagonal and in each over the query heads of the pair. It keeps the gradients of its keys and values in registers.
//
// The gradients of a tile of queries are a sum over blocks, in fp32 in global memory. Blocks add in ascending order of their keys, so the bits are equal
// on every run: a counter of each tile says whose turn it is. The block on the diagonal adds last and writes the result.
//
// A block waits only for blocks of lower keys of its pair. It takes its place by a ticket, so those blocks have taken theirs and are resident: the
// kernel ends in whatever order the hardware starts its blocks, on however few multiprocessors, and beside other kernels. The sums of a block are
// stored before a barrier, behind which one thread releases the counter; another thread acquires it before a barrier, behind which its block loads.
//
// Lower keys are seen by more queries. In ascending order the longest blocks of all pairs start first and the grid ends with short ones. Blocks of one
// pair that start together wait for each other in their first step and then stay a step apart, because all walk down from the last queries at the same
// pace. In a model in which every step takes the same time, 8 pairs of 64 tiles and 4 query heads on 132 multiprocessors lose 2 % to waits and the end
// of the grid. Descending keys, whose longest blocks come last, would lose 21 %.
//
// Shapes: dout [M,N*H], qkv and dqkv [M,(N+2K)H], all T; lse, delta and the sums as in AttentionBackward and QuerySums. For each step of kQueries
// queries and each of its heads a block reads 4 kQueries H bytes of queries and dout, and reads and writes 4 kQueries H bytes of sums.
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_tiles.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;

/// How a block's warps share its products: grids of rows x columns of warps over the results.
template <int H, int kKeys, int kQueries>
struct Warps {
  static constexpr int kScoreRows = kQueries == 128 ? 4 : 2, kScoreColumns = kWarps / kScoreRows;  // queries x keys
  static constexpr int kKeyRows = 4, kKeyColumns = kWarps / kKeyRows;                              // keys x H
  static constexpr int kQueryRows = H == 128 ? 2 : 4, kQueryColumns = kWarps / kQueryRows;         // queries x H
  using Scores = Fragments<kQueries / 16 / kScoreRows, kKeys / 8 / kScoreColumns>;
  using KeyGradients = Fragments<kKeys / 16 / kKeyRows, H / 8 / kKeyColumns>;
  using QueryGradients = Fragments<kQueries / 16 / kQueryRows, H / 8 / kQueryColumns>;
};

template <int H, int kKeys, int kQueries>
struct BackwardMemory {
  static_assert(kKeys % kQueries == 0 && kStatisticsTile % kQueries == 0 && kQueries % kCountedQueries == 0 && 2 * kKeys >= H);
  unsigned char keys[kKeys * Tile<H>::kRowBytes], values[kKeys * Tile<H>::kRowBytes];
  unsigned char queries[2][kQueries * Tile<H>::kRowBytes], douts[2][kQueries * Tile<H>::kRowBytes];  // of this step and the next
  static constexpr int kScoreBytes = kQueries * Tile<kKeys>::kRowBytes;
  unsigned char scores[2 * kScoreBytes];  // probabilities and the gradients of scores; at the diagonal gradients of queries
  float lse[2][kQueries], delta[2][kQueries];
  // Kept here to save registers: the block's pair and first key, and where the first query head of the pair begins in qkv, dout and the statistics.
  int64_t from_queries, from_douts;
  int from_rows, pair, first_key;
};
/// The same if queries attend to less than all keys before them.
template <int H, int kKeys, int kQueries>
struct BoundedBackwardMemory : BackwardMemory<H, kKeys, kQueries> {
  int ends[kKeys];  ///< of each key: the query behind the last one that attends to it, counted from the first key of the warp's scores
  int end_before;   ///< that query of the last key of the block of lower keys
};

/// scores -> probabilities, which are zero where a query does not attend to a key. `ahead` = first row - first key of the fragments. `ends`: of the
/// keys, null if not bounded.
template <int kM, int kN, bool kBounded>
__device__ inline void probabilities_of(Fragments<kM, kN>& scores, const float* lse, float scale_log2, int ahead, const int* ends, int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = exp2_fast(fmaf(scores[m][n][i], scale_log2, -lse[16 * m + i / 2 * 8 + lane / 4]));
  if (ahead >= 8 * kN - 1 && (!kBounded || ahead + 16 * kM <= ends[0])) return;
  ahead += lane / 4;
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int column = 0; column < 2; ++column) {
      const int key = 8 * n + lane % 4 * 2 + column, end = kBounded ? ends[key] : 0;
#pragma unroll
      for (int m = 0; m < kM; ++m)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int query = ahead + 16 * m + 8 * half;
          const bool later = kBounded && query >= end;
          if ((key > query) | later) scores[m][n][2 * half + column] = 0;
        }
    }
}

/// ds = p (dp - delta), of the n-tiles of p from `first` on.
template <int kM, int kN, int kAll>
__device__ inline void score_gradients_of(Fragments<kM, kN>& dp, const Fragments<kM, kAll>& p, int first, const float* delta, int lane) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[m][n][i] = p[m][first + n][i] * (dp[m][n][i] - delta[16 * m + i / 2 * 8 + lane / 4]);
}

/// A tile's sums in global memory are in the order of the block's fragments: thread by thread 16 bytes, then the next 16 bytes of each thread.
template <int kM, int kN>
__device__ inline void load_sums(Fragments<kM, kN>& to, const float* sums) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n) load_vector(sums + ((m * kN + n) * kThreads + static_cast<int>(threadIdx.x)) * 4, to[m][n]);
}
template <int kM, int kN>
__device__ inline void store_sums(const Fragments<kM, kN>& from, float* sums) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n) store_vector(sums + ((m * kN + n) * kThreads + static_cast<int>(threadIdx.x)) * 4, from[m][n]);
}

template <class T, int H, int kKeys, int kQueries, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1)
    flash_backward_kernel(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse, const float* __restrict__ delta,
                          AttentionLayout layout, BlockOrder order, int first_pair, T* __restrict__ dqkv, QuerySums shared) {
  using Loader = TileLoader<T, H, kThreads>;
  using Grid = Warps<H, kKeys, kQueries>;
  using Scores = typename Grid::Scores;
  using KeyGradients = typename Grid::KeyGradients;
  using QueryGradients = typename Grid::QueryGradients;
  constexpr int kSM = std::extent_v<Scores, 0>, kSN = std::extent_v<Scores, 1>;
  constexpr int kPart = H == 64 && kSN == 8 ? 4 : kSN;  // n-tiles of gradients of scores at a time: all would not fit in registers
  constexpr int kKM = std::extent_v<KeyGradients, 0>, kKN = std::extent_v<KeyGradients, 1>;
  constexpr int kQM = std::extent_v<QueryGradients, 0>, kQN = std::extent_v<QueryGradients, 1>;
  using Memory = std::conditional_t<kBounded, BoundedBackwardMemory<H, kKeys, kQueries>, BackwardMemory<H, kKeys, kQueries>>;
  TRIREME_DYNAMIC_SHARED(Memory, memory);
  const int thread = static_cast<int>(threadIdx.x), warp = thread / kWarp;
  if (thread == 0) {
    const auto [item, tile] = order.place(static_cast<int>(atomicAdd(shared.ticket, 1U)));
    memory->pair = first_pair + item;
    memory->first_key = tile * kKeys;
    memory->from_queries = layout.query(memory->pair * layout.group);
    memory->from_douts = layout.output(memory->pair * layout.group);
    memory->from_rows = item * layout.group * static_cast<int>(statistics_stride(layout.sequence));
  }
  __syncthreads();
  const int first_key = memory->first_key, sequence = layout.sequence;
  const auto row_of = [&](int head, int query) { return memory->from_rows + head * static_cast<int>(statistics_stride(sequence)) + query; };

  const auto load = [&](int buffer, int head, int query) {
    const T* const queries = qkv + memory->from_queries + query * layout.columns + head * H;
    const T* const douts = dout + memory->from_douts + query * layout.out_columns + head * H;
    const int self = reread_thread();
    Loader::template load<kQueries>(memory->queries[buffer], Loader::begin(queries, layout.columns, self), layout.columns, sequence - query, self);
    Loader::template load<kQueries>(memory->douts[buffer], Loader::begin(douts, layout.out_columns, self), layout.out_columns, sequence - query,
                                    self);
    if (self < kQueries / 4) {
      const int at = row_of(head, query) + 4 * self;
      cp_async_16(&memory->lse[buffer][4 * self], lse + at, true);
      cp_async_16(&memory->delta[buffer][4 * self], delta + at, true);
    }
    cp_async_commit();
  };
  const T* const from_keys = Loader::begin(qkv + layout.key(memory->pair) + first_key * layout.columns, layout.columns);
  Loader::template load<kKeys>(memory->keys, from_keys, layout.columns, sequence - first_key);
  Loader::template load<kKeys>(memory->values, from_keys + layout.to_values, layout.columns, sequence - first_key);
  int end = sequence;  // of the queries that attend to any of the keys
  if constexpr (kBounded) {
    const int b = memory->pair / layout.kv_heads;
    end = layout.end_of_queries(b, first_key + kKeys - 1);
    constexpr int kOfWarp = 8 * kSN;
    if (thread < kKeys) memory->ends[thread] = layout.end_of_queries(b, first_key + thread) - first_key - thread / kOfWarp * kOfWarp;
    if (thread == kKeys) memory->end_before = first_key == 0 ? 0 : layout.end_of_queries(b, first_key - 1);
  }
  const int last_query = (end - 1) / kQueries * kQueries;
  load(0, 0, last_query);

  // A warp's rows and columns in each product. The columns of gradients are blocks of 16, dealt to the warps of a row in turn: the swizzle of a block
  // is then known at compile time.
  const int score_row = warp / Grid::kScoreColumns * 16 * kSM, score_column = warp % Grid::kScoreColumns * 8 * kSN;
  const int key_row = warp / Grid::kKeyColumns * 16 * kKM, key_column = warp % Grid::kKeyColumns;
  const int query_row = warp / Grid::kQueryColumns * 16 * kQM, query_column = warp % Grid::kQueryColumns;
  unsigned char *const probabilities = memory->scores, *const dscores = memory->scores + Memory::kScoreBytes;
  const auto one = [](int, int) { return 1.0F; };
  const auto scale = [&](int, int) { return layout.scale; };
  KeyGradients dkeys, dvalues;
  clear<kKM, kKN>(dkeys);
  clear<kKM, kKN>(dvalues);
  int buffer = 0, added = -1;  // `added`: counter of the queries to whose sums this block has added in the previous step; -1: none
  for (int query = last_query; query >= first_key; query -= kQueries)
    for (int head = 0; head < layout.group; ++head, buffer ^= 1) {
      const int row = row_of(head, query);
      cp_async_wait<0>();
      __syncthreads();  // this step's tiles have arrived, and all threads have ended the previous step
      // Whether this is the first or the last of the blocks that add to these queries.
      const auto is_first = [&] {
        if constexpr (kBounded) return memory->end_before <= query;
        return first_key == 0;
      };
      const bool last = query < first_key + kKeys;
      // Both take as long as an access to the L2 cache. The other warps compute scores meanwhile.
      if (thread == 0 && added >= 0) release_value(shared.counters + added, static_cast<uint32_t>(first_key / kKeys + 1));
      if (thread == kWarp && !is_first()) wait_for_value(shared.counters + row / kCountedQueries, static_cast<uint32_t>(first_key / kKeys));
      const bool other_head = head + 1 < layout.group;
      if (other_head || query > first_key) load(buffer ^ 1, other_head ? head + 1 : 0, other_head ? query : query - kQueries);

      const int again = reread_thread() % kWarp;
      Scores p;
      multiply_rows<T, H, kSM, kSN>(p, memory->queries[buffer] + score_row * Tile<H>::kRowBytes, memory->keys + score_column * Tile<H>::kRowBytes,
                                    again);
      const int* ends = nullptr;
      if constexpr (kBounded) ends = memory->ends + score_column;
      probabilities_of<kSM, kSN, kBounded>(p, memory->lse[buffer] + score_row, layout.scale_log2, query + score_row - first_key - score_column, ends,
                                           again);
      put_rows<T, kKeys, kSM, kSN, 1>(probabilities + score_row * Tile<kKeys>::kRowBytes, p, score_column / 16, one);
#pragma unroll
      for (int n = 0; n < kSN; n += kPart) {
        Fragments<kSM, kPart> dp;
        multiply_rows<T, H, kSM, kPart>(dp, memory->douts[buffer] + score_row * Tile<H>::kRowBytes,
                                        memory->values + (score_column + 8 * n) * Tile<H>::kRowBytes, again);
        score_gradients_of<kSM, kPart, kSN>(dp, p, n, memory->delta[buffer] + score_row, again);
        put_rows<T, kKeys, kSM, kPart, 1>(dscores + score_row * Tile<kKeys>::kRowBytes, dp, score_column / 16 + n / 2, one);
      }

      __syncthreads();  // probabilities and their gradients are complete, and so are the sums of the blocks before
      float* const sums = shared.sums + int64_t{row} * H;
      QueryGradients dqueries;
      if (is_first()) {
        clear<kQM, kQN>(dqueries);
      } else {
        load_sums<kQM, kQN>(dqueries, sums);
      }
      const auto add_key_gradients = [&](KeyGradients& gradients, const unsigned char* scores, const unsigned char* rows) {
        const int lane = reread_thread() % kWarp, of_keys = Tile<kKeys>::at_column(Tile<kKeys>::right_then_down(lane), key_row / 16);
        const int of_columns = Tile<H>::at_column(Tile<H>::down_then_right(lane), key_column);
        add_products<T, kQueries / 16, kKM, kKN>(
            gradients,
            [&](uint32_t(&block)[4], int m, int step) {
              ldmatrix_x4_trans(block, Tile<kKeys>::block(scores, of_keys, kQueries - 16 - 16 * step, m));
            },
            [&](uint32_t(&block)[4], int n, int step) {
              ldmatrix_x4_trans(block, Tile<H>::block(rows, of_columns, kQueries - 16 - 16 * step, n / 2 * Grid::kKeyColumns));
            });
      };
      add_key_gradients(dvalues, probabilities, memory->douts[buffer]);
      add_key_gradients(dkeys, dscores, memory->queries[buffer]);
      const int lane = reread_thread() % kWarp, of_scores = Tile<kKeys>::down_then_right(lane);
      const int of_columns = Tile<H>::at_column(Tile<H>::down_then_right(lane), query_column);
      add_products<T, kKeys / 16, kQM, kQN>(
          dqueries,
          [&](uint32_t(&block)[4], int m, int step) {
            ldmatrix_x4(block, Tile<kKeys>::block(dscores + query_row * Tile<kKeys>::kRowBytes, of_scores, 16 * m, step));
          },
          [&](uint32_t(&block)[4], int n, int step) {
            ldmatrix_x4_trans(block, Tile<H>::block(memory->keys, of_columns, 16 * step, n / 2 * Grid::kQueryColumns));
          });
      if (!last) {
        store_sums<kQM, kQN>(dqueries, sums);
        added = row / kCountedQueries;
        continue;
      }
      added = -1;
      __syncthreads();  // no thread reads the scores any more: the result is staged there
      put_rows<T, H, kQM, kQN, Grid::kQueryColumns>(probabilities + query_row * Tile<H>::kRowBytes, dqueries, query_column, scale);
      __syncthreads();
      store_tile<H, kQueries, kThreads>(thread, probabilities, dqkv + memory->from_queries + query * layout.columns + head * H, layout.columns,
                                        sequence - query);
    }

  // The last step was on the diagonal. No thread has read keys or values since its barriers, so their gradients are staged there.
  put_rows<T, H, kKM, kKN, Grid::kKeyColumns>(memory->keys + key_row * Tile<H>::kRowBytes, dkeys, key_column, scale);
  put_rows<T, H, kKM, kKN, Grid::kKeyColumns>(memory->values + key_row * Tile<H>::kRowBytes, dvalues, key_column, one);
  __syncthreads();
  T* const to_keys = dqkv + layout.key(memory->pair) + memory->first_key * layout.columns;
  store_tile<H, kKeys, kThreads>(thread, memory->keys, to_keys, layout.columns, sequence - memory->first_key);
  store_tile<H, kKeys, kThreads>(thread, memory->values, to_keys + layout.to_values, layout.columns, sequence - memory->first_key);
}

template <class T, int H, int kKeys, int kQueries>
void launch_kernel(const Context& ctx, const AttentionBackward<T>& t, const AttentionShape& shape) {
  // All pairs at once, whatever they take of the cache: the fewer blocks of one pair start together, the less they wait for each other. Its blocks are
  // at the same queries at the same time, so the cache need not hold all of a pair.
  const BlockOrder order(t.pairs, ceil_div(shape.sequence, kKeys), 0);
  dispatch_bounded(t.layout, [&](auto bounded) {
    const int64_t shared = bounded ? sizeof(BoundedBackwardMemory<H, kKeys, kQueries>) : sizeof(BackwardMemory<H, kKeys, kQueries>);
    launch(ctx, flash_backward_kernel<T, H, kKeys, kQueries, bounded>, {order.grid(), dim3(kThreads), shared}, t.dout, t.qkv, t.lse, t.delta,
           t.layout, order, static_cast<int>(t.first_pair), t.dqkv, t.query_sums);
  });
}

template <class T, int H>
void backward(const Context& ctx, const AttentionBackward<T>& t, const AttentionShape& shape) {
  // Limited so that a warp's sums, probabilities and their gradients fit in registers, and the tiles into the 163 KB of a block on sm_80.
  constexpr int kKeys = 128, kQueries = H <= 64 ? 128 : 64;
  // For the 99 KB of a block on sm_86, sm_89 and sm_120.
  constexpr int kFewerKeys = H <= 64 ? 128 : 64, kFewerQueries = H <= 96 ? 64 : 32;
  int available = 0;
  check(cudaDeviceGetAttribute(&available, cudaDevAttrMaxSharedMemoryPerBlockOptin, ctx.gpu->index()), "cudaDeviceGetAttribute");
  if (available >= static_cast<int>(sizeof(BoundedBackwardMemory<H, kKeys, kQueries>))) return launch_kernel<T, H, kKeys, kQueries>(ctx, t, shape);
  launch_kernel<T, H, kFewerKeys, kFewerQueries>(ctx, t, shape);
}

}  // namespace

template <class T>
void flash_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape) {
#ifdef TRIREME_HOPPER
  if (uses_hopper(ctx, shape)) return hopper_backward(ctx, tensors, shape);
#endif
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
