// The backward of attention_flash_backward.cu on sm_90a: the same five products and turns of the sums, by products of warpgroups (wgmma: warpgroup
// matrix multiply-accumulate) and with warps of three roles, which meet at named barriers.
//
// A block owns 128 keys of one pair and walks over the queries that attend to them, from the last tile to the diagonal and in each over the query
// heads. Two warpgroups compute, each for 64 of the keys. Two warps of the third warpgroup load the tiles of the next step, and one adds to the sums;
// this warpgroup leaves most of its registers to the others.
//
// Scores are transposed, [keys, queries], as in flash attention 3 (Shah et al. 2024, arXiv:2407.08608): then probabilities and their gradients are
// operands A of the gradients of values and keys as they are, in registers. Only the gradients of scores also pass through shared memory, because the
// gradients of queries are sums over the keys of both warpgroups, each of which computes a half of them.
//
// The gradients of a tile of queries are summed in global memory, in ascending order of the blocks' keys: a counter of each tile says whose turn it is.
// The adding warp waits for the turn, adds by one bulk operation from shared memory, which reads nothing back, and releases the counter, while the
// warpgroups compute up to two steps more. On the diagonal, the block is the last that adds: the warpgroups load the sums and write the result.
//
// Shapes as in attention_flash_backward.cu. In each step, of kQueries queries of one head, a block reads 4 kQueries H bytes of queries and dout, and
// adds 4 kQueries H bytes to sums.
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_panels.cuh"

namespace trireme::cuda {
namespace {

constexpr int kGroups = 2;
constexpr int kKeys = kGroups * kGroupRows;  // of a block
// Threads of each role. The last two are warps of a third warpgroup, of which one warp is idle.
constexpr int kComputing = kGroups * kWarpgroup, kAdding = kWarp, kLoading = 2 * kWarp;
constexpr int kThreads = kComputing + kWarpgroup;
constexpr int kComputingRegisters = 224, kOtherRegisters = 56;

/// Named barriers. Those of tiles and addends exist for each of two buffers, and steps use the buffers in turn.
enum Barrier : int {
  kLoaded = 1,   // + buffer: the loading warps arrive with a step's tiles, and the warpgroups wait
  kRead = 3,     // + buffer: the warpgroups arrive when they have read them, and the loading warps wait
  kAddend = 5,   // + buffer: the warpgroups arrive with an addend, and the adding warp waits
  kAdded = 7,    // + buffer: the adding warp arrives when the memory of an addend is free, and the warpgroups wait
  kScores = 9,   // the warpgroups meet when the gradients of scores are in shared memory
  kTurn = 10,    // the adding warp and the warpgroups meet when the sums of the blocks before are complete
  kResult = 11,  // the warpgroups meet when a result is in shared memory
};

template <class T, int H, int kQueries>
struct BackwardMemory {
  static constexpr int kQueriesOfStep = kQueries;
  static_assert(kKeys % kQueries == 0 && kStatisticsTile % kQueries == 0 && kQueries % kCountedQueries == 0);
  using KeyTile = Panels<H, kKeys>;
  using QueryTile = Panels<H, kQueries>;
  using ScoreTile = Panels<kQueries, kKeys>;  // rows of keys
  alignas(1024) unsigned char keys[KeyTile::kBytes];
  unsigned char values[KeyTile::kBytes];
  unsigned char queries[2][QueryTile::kBytes], douts[2][QueryTile::kBytes];  // of this step and the next
  unsigned char dscores[ScoreTile::kBytes];
  float addends[2][kQueries * H];  // to the gradients of queries, of two steps; or a result of type T
  float lse[2][kQueries], delta[2][kQueries];
  int pair, first_key, from_rows;  // the block's pair and first key, and where the pair's first query head begins in the statistics
  int end_before;                  // if bounded: the query behind the last one that attends to a key of the block of lower keys
};

/// The steps of a block, each of `kQueries` queries of one head of its pair. What is needed rarely stays in shared memory.
template <bool kBounded, class Memory>
struct Steps {
  static constexpr int kQueries = Memory::kQueriesOfStep;
  const AttentionLayout& layout;
  const Memory& memory;
  int first_key, query, head = 0, buffer = 0;

  __device__ Steps(const AttentionLayout& of_layout, const Memory& of_block) : layout(of_layout), memory(of_block), first_key(of_block.first_key) {
    const int end = kBounded ? end_of_queries(first_key + kKeys - 1) : layout.sequence;
    query = (end - 1) / kQueries * kQueries;
  }
  /// The query behind the last one that attends to the key.
  __device__ int end_of_queries(int key) const { return layout.end_of_queries(memory.pair / layout.kv_heads, key); }
  __device__ bool more() const { return query >= first_key; }
  /// Whether this block is the first one, or the last one, that adds to the gradients of these queries.
  __device__ bool adds_first() const { return kBounded ? memory.end_before <= query : first_key == 0; }
  __device__ bool adds_last() const { return query < first_key + kKeys; }
  /// Row of the step's first query in the statistics and in the sums.
  __device__ int row() const { return memory.from_rows + head * static_cast<int>(statistics_stride(layout.sequence)) + query; }
  __device__ void advance() {
    buffer ^= 1;
    if (++head < layout.group) return;
    head = 0;
    query -= kQueries;
  }
};

/// The loading warps. `thread`: of kLoading.
template <bool kBounded, class T, int H, int kQueries>
__device__ inline void load_tiles(BackwardMemory<T, H, kQueries>& memory, const AttentionLayout& layout, const T* qkv, const T* dout,
                                  const float* lse, const float* delta, int thread) {
  Steps<kBounded, BackwardMemory<T, H, kQueries>> step(layout, memory);
  const T* const keys = qkv + layout.key(memory.pair) + step.first_key * layout.columns;
  load_panels<H, kKeys, kLoading>(memory.keys, keys, layout.columns, layout.sequence - step.first_key, thread);
  load_panels<H, kKeys, kLoading>(memory.values, keys + layout.to_values, layout.columns, layout.sequence - step.first_key, thread);
  const T *const queries = qkv + layout.query(memory.pair * layout.group), *const douts = dout + layout.output(memory.pair * layout.group);
  for (int filled = 0; step.more(); ++filled, step.advance()) {
    const int buffer = step.buffer;
    if (filled >= 2) barrier_sync(kRead + buffer, kComputing + kLoading);
    load_panels<H, kQueries, kLoading>(memory.queries[buffer], queries + step.query * layout.columns + step.head * H, layout.columns,
                                       layout.sequence - step.query, thread);
    load_panels<H, kQueries, kLoading>(memory.douts[buffer], douts + step.query * layout.out_columns + step.head * H, layout.out_columns,
                                       layout.sequence - step.query, thread);
    if (thread < kQueries / 4) {
      cp_async_16(&memory.lse[buffer][4 * thread], lse + step.row() + 4 * thread, true);
      cp_async_16(&memory.delta[buffer][4 * thread], delta + step.row() + 4 * thread, true);
    }
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async();
    barrier_arrive(kLoaded + buffer, kComputing + kLoading);
  }
}

/// The adding warp. Before it adds a step's addend it says that the memory of the next one is free, so that the warpgroups may write that meanwhile.
template <bool kBounded, class T, int H, int kQueries>
__device__ inline void add_to_sums(BackwardMemory<T, H, kQueries>& memory, const AttentionLayout& layout, const QuerySums& shared, int lane) {
  Steps<kBounded, BackwardMemory<T, H, kQueries>> step(layout, memory);
  const uint32_t turn = static_cast<uint32_t>(step.first_key / kKeys);
  if (!step.adds_last()) barrier_arrive(kAdded, kComputing + kAdding);
  while (step.more()) {
    const int row = step.row(), buffer = step.buffer;
    const bool adds_first = step.adds_first(), adds_last = step.adds_last();
    uint32_t* const counter = shared.counters + row / kCountedQueries;
    step.advance();
    if (adds_last) {
      if (lane == 0 && !adds_first) wait_for_value(counter, turn);
      __syncwarp();
      barrier_sync(kTurn, kComputing + kAdding);
      continue;
    }
    if (!step.adds_last()) barrier_arrive(kAdded + step.buffer, kComputing + kAdding);
    barrier_sync(kAddend + buffer, kComputing + kAdding);
    if (lane == 0) {
      float* const sums = shared.sums + int64_t{row} * H;
      if (adds_first) {
        bulk_store(sums, memory.addends[buffer], kQueries * H * 4);
      } else {
        wait_for_value(counter, turn);
        bulk_add(sums, memory.addends[buffer], kQueries * H * 4);
      }
      bulk_commit();
      bulk_wait<0>();
      release_value(counter, turn + 1);
    }
    __syncwarp();
  }
}

/// Scores [keys, queries] -> probabilities of all keys. `lse`: of the lane's first column.
template <int kN>
__device__ inline void probabilities_of(float (&scores)[kN][4], const float* lse, float scale_log2) {
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float2 of = *reinterpret_cast<const float2*>(lse + 8 * n);
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      scores[n][2 * half] = exp2_fast(fmaf(scores[n][2 * half], scale_log2, -of.x));
      scores[n][2 * half + 1] = exp2_fast(fmaf(scores[n][2 * half + 1], scale_log2, -of.y));
    }
  }
}
/// Makes the probabilities zero where a query does not attend to a key. `ahead`: query of the lane's first column - key of its first row. `ends`: of the
/// lane's two rows, counted from its first column.
template <int kN, bool kBounded>
__device__ inline void mask(float (&p)[kN][4], int ahead, const int (&ends)[2]) {
#pragma unroll
  for (int n = 0; n < kN; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int query = 8 * n + i % 2, half = i / 2;
      const bool later = kBounded && query >= ends[half];
      if ((8 * half > ahead + query) | later) p[n][i] = 0;
    }
}

/// The warpgroups. `thread`: of kComputing.
template <bool kBounded, class T, int H, int kQueries>
__device__ inline void compute(BackwardMemory<T, H, kQueries>& memory, const AttentionLayout& layout, T* dqkv, const float* sums, int thread) {
  using Memory = BackwardMemory<T, H, kQueries>;
  using KeyTile = typename Memory::KeyTile;
  using QueryTile = typename Memory::QueryTile;
  using ScoreTile = typename Memory::ScoreTile;
  constexpr int kN = kQueries / 8;
  Steps<kBounded, Memory> step(layout, memory);
  const int first_key = step.first_key, group = warpgroup_of(thread), lane = thread % kWarp;
  const int group_row = group * kGroupRows, lane_row = group_row + thread % kWarpgroup / kWarp * 16 + lane / 4, lane_column = lane % 4 * 2;
  const uint32_t keys = shared_address(memory.keys), values = shared_address(memory.values), dscores = shared_address(memory.dscores);
  // The warpgroup's half of the gradients of queries: 64 columns of all queries, or all columns of 64 queries.
  const int of_columns = H == 128 ? group : 0, of_queries = H == 128 ? 0 : group;
  int ends[2] = {}, first_end = 0;  // if bounded: of the lane's two keys, and of the warpgroup's first one, the query behind the last that attends
  if constexpr (kBounded) {
    ends[0] = step.end_of_queries(first_key + lane_row), ends[1] = step.end_of_queries(first_key + lane_row + 8);
    first_end = step.end_of_queries(first_key + group_row);
  }
  float dkeys[H / 8][4], dvalues[H / 8][4];
#pragma unroll
  for (int n = 0; n < H / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) dkeys[n][i] = dvalues[n][i] = 0;
  for (; step.more(); step.advance()) {
    const int query = step.query, buffer = step.buffer;
    barrier_sync(kLoaded + buffer, kComputing + kLoading);  // both warpgroups have also ended the previous step
    const uint32_t queries = shared_address(memory.queries[buffer]), douts = shared_address(memory.douts[buffer]);
    float p[kN][4], dp[kN][4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < H / 16; ++k)
      wgmma<T, kQueries, false, false>(p, KeyTile::along_columns(keys, group_row, k), QueryTile::along_columns(queries, 0, k), k > 0);
    wgmma_commit();
#pragma unroll
    for (int k = 0; k < H / 16; ++k)
      wgmma<T, kQueries, false, false>(dp, KeyTile::along_columns(values, group_row, k), QueryTile::along_columns(douts, 0, k), k > 0);
    wgmma_commit();

    wgmma_wait<1>();
    pin(p);
    probabilities_of<kN>(p, memory.lse[buffer] + lane_column, layout.scale_log2);
    // A mask is needed where a query of the tile does not attend to a key of the warpgroup.
    if (query < first_key + group_row + kGroupRows - 1 || (kBounded && query + kQueries > first_end)) {
      const int column = query + lane_column;
      mask<kN, kBounded>(p, column - first_key - lane_row, {ends[0] - column, ends[1] - column});
    }
    uint32_t probabilities[kN / 2][4], gradients[kN / 2][4];
    pack_operands<T, kN>(probabilities, p);
    wgmma_wait<0>();
    pin(dp);
    const float* const of_delta = memory.delta[buffer] + lane_column;
#pragma unroll
    for (int n = 0; n < kN; ++n) {
      const float2 of = *reinterpret_cast<const float2*>(of_delta + 8 * n);
#pragma unroll
      for (int i = 0; i < 4; ++i) dp[n][i] = p[n][i] * (dp[n][i] - (i % 2 == 0 ? of.x : of.y));
    }
    pack_operands<T, kN>(gradients, dp);
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) wgmma<T, H, true>(dvalues, probabilities[k], QueryTile::along_rows(douts, 0, k), true);
    wgmma_commit();
#pragma unroll
    for (int k = 0; k < kN / 2; ++k)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        *reinterpret_cast<uint32_t*>(memory.dscores + ScoreTile::offset(lane_row + i % 2 * 8, 2 * k + i / 2) + lane % 4 * 4) = gradients[k][i];
#pragma unroll
    for (int k = 0; k < kQueries / 16; ++k) wgmma<T, H, true>(dkeys, gradients[k], QueryTile::along_rows(queries, 0, k), true);
    wgmma_commit();
    fence_proxy_async();
    barrier_sync(kScores, kComputing);
    float dqueries[8][4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kKeys / 16; ++k)
      wgmma<T, 64, true, true>(dqueries, ScoreTile::along_rows(dscores, of_queries, k), KeyTile::along_rows(keys, of_columns, k), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(dqueries);
    pin(dkeys);
    pin(dvalues);
    barrier_arrive(kRead + buffer, kComputing + kLoading);
    float* const addend = memory.addends[buffer];
    if (!step.adds_last()) {
      barrier_sync(kAdded + buffer, kComputing + kAdding);
#pragma unroll
      for (int n = 0; n < 8; ++n) store_vector(addend + (n * kComputing + thread) * 4, dqueries[n]);
      fence_proxy_async();
      barrier_arrive(kAddend + buffer, kComputing + kAdding);
      continue;
    }
    barrier_sync(kTurn, kComputing + kAdding);
    if (!step.adds_first()) {
      const float* const before = sums + int64_t{step.row()} * H;
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        float of_others[4];
        load_vector(before + (n * kComputing + thread) * 4, of_others);
#pragma unroll
        for (int i = 0; i < 4; ++i) dqueries[n][i] += of_others[i];
      }
    }
    auto* const result = reinterpret_cast<unsigned char*>(addend);
    put_panels<T, 64, kQueries>(result + of_columns * QueryTile::kPanelBytes, of_queries * kGroupRows, dqueries, reread_thread(),
                                [&](int) { return layout.scale; });
    barrier_sync(kResult, kComputing);
    T* const to_queries = dqkv + layout.query(memory.pair * layout.group + step.head) + query * layout.columns;
    store_panels<H, kQueries, kComputing>(reread_thread(), result, to_queries, layout.columns, layout.sequence - query);
  }

  // The last step was on the diagonal. No product has read keys or values since its last barrier, so their gradients are staged there.
  put_panels<T, H, kKeys>(memory.keys, group_row, dkeys, thread, [&](int) { return layout.scale; });
  put_panels<T, H, kKeys>(memory.values, group_row, dvalues, thread, [](int) { return 1.0F; });
  barrier_sync(kResult, kComputing);
  T* const to_keys = dqkv + layout.key(memory.pair) + first_key * layout.columns;
  store_panels<H, kKeys, kComputing>(thread, memory.keys, to_keys, layout.columns, layout.sequence - first_key);
  store_panels<H, kKeys, kComputing>(thread, memory.values, to_keys + layout.to_values, layout.columns, layout.sequence - first_key);
}

template <class T, int H, int kQueries, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1)
    hopper_backward_kernel(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse, const float* __restrict__ delta,
                           AttentionLayout layout, BlockOrder order, int first_pair, T* __restrict__ dqkv, QuerySums shared) {
  using Memory = BackwardMemory<T, H, kQueries>;
  TRIREME_PANEL_SHARED(Memory, memory);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) {
    const auto [item, tile] = order.place(static_cast<int>(atomicAdd(shared.ticket, 1U)));
    memory->pair = first_pair + item;
    memory->first_key = tile * kKeys;
    memory->end_before = !kBounded || tile == 0 ? 0 : layout.end_of_queries(memory->pair / layout.kv_heads, tile * kKeys - 1);
    memory->from_rows = item * layout.group * static_cast<int>(statistics_stride(layout.sequence));
  }
  __syncthreads();
  if (thread < kComputing) {
    raise_registers<kComputingRegisters>();
    compute<kBounded>(*memory, layout, dqkv, shared.sums, thread);
  } else {
    lower_registers<kOtherRegisters>();
    const int other = thread - kComputing;
    if (other < kAdding) {
      add_to_sums<kBounded>(*memory, layout, shared, other);
    } else if (other >= kWarpgroup - kLoading) {
      load_tiles<kBounded>(*memory, layout, qkv, dout, lse, delta, other - (kWarpgroup - kLoading));
    }
  }
}

template <class T, int H>
void backward(const Context& ctx, const AttentionBackward<T>& t, const AttentionShape& shape) {
  constexpr int kQueries = H == 128 ? 64 : 128;
  const BlockOrder order(t.pairs, ceil_div(shape.sequence, kKeys), shape.sequence * H * 8 * t.layout.group);
  dispatch_bounded(t.layout, [&](auto bounded) {
    launch(ctx, hopper_backward_kernel<T, H, kQueries, bounded>, {order.grid(), dim3(kThreads), sizeof(BackwardMemory<T, H, kQueries>)}, t.dout,
           t.qkv, t.lse, t.delta, t.layout, order, static_cast<int>(t.first_pair), t.dqkv, t.query_sums);
  });
}

}  // namespace

template <class T>
void hopper_backward(const Context& ctx, const AttentionBackward<T>& tensors, const AttentionShape& shape) {
  if (shape.head_size == 64) return backward<T, 64>(ctx, tensors, shape);
  backward<T, 128>(ctx, tensors, shape);
}
template void hopper_backward(const Context&, const AttentionBackward<bfloat16>&, const AttentionShape&);
template void hopper_backward(const Context&, const AttentionBackward<float16>&, const AttentionShape&);

}  // namespace trireme::cuda
