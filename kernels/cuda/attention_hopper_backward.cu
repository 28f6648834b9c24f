// The backward of attention_flash_backward.cu on sm_90a: the same five products and turns of the sums, by products of warpgroups (wgmma: warpgroup
// matrix multiply-accumulate).
// A block owns 128 keys of one pair and walks over the queries that see them, from the last tile to the diagonal and in each over the query heads.
//
// Each of two warpgroups owns 64 keys. Its scores are transposed, [keys, queries], as in flash attention 3 (Shah et al. 2024, arXiv:2407.08608): then
// probabilities and their gradients are operands A of the gradients of values and keys as they are, in registers. Only the gradients of scores also
// pass through shared memory, because the gradients of queries are sums over the keys of both warpgroups, each of which computes a half of them.
//
// The gradients of a tile of queries are summed in global memory, in ascending order of the blocks' keys: a counter of each tile says whose turn it is.
// A block adds by one bulk operation from shared memory, which reads nothing back, while it computes its next two steps. Then it releases the counter. The block on the diagonal loads the sums and writes the result.
//
// Shapes as in attention_flash_backward.cu. For each step of kQueries queries and each of its heads a block reads 4 kQueries H bytes of queries and
// dout, and adds 4 kQueries H bytes to sums.
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_panels.cuh"

namespace trireme::cuda {
namespace {

constexpr int kGroups = 2;
constexpr int kThreads = kGroups * kWarpgroup;
constexpr int kKeys = kGroups * kGroupRows;  // of a block

template <class T, int H, int kQueries>
struct BackwardMemory {
  static_assert(kKeys % kQueries == 0 && kStatisticsTile % kQueries == 0 && kQueries % kCountedQueries == 0);
  using KeyTile = Panels<H, kKeys>;
  using QueryTile = Panels<H, kQueries>;
  using ScoreTile = Panels<kQueries, kKeys>;  // rows of keys
  alignas(1024) unsigned char keys[KeyTile::kBytes];
  unsigned char values[KeyTile::kBytes];
  unsigned char queries[2][QueryTile::kBytes], douts[2][QueryTile::kBytes];  // of this step and the next
  unsigned char dscores[ScoreTile::kBytes];
  float addends[2][kQueries * H];  // to the gradients of queries, of the last two steps; or a result of type T
  float lse[2][kQueries], delta[2][kQueries];
  int64_t from_queries, from_douts;  // where the first query head of the pair begins in qkv and dout
  int from_rows, pair, first_key;    // the same in the statistics; the block's pair and first key
  int ends[kKeys];                   // of each key, if bounded: the query behind the last one that attends to it
  int end_before;                    // that query of the last key of the block of lower keys
};

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

template <class T, int H, int kQueries, bool kBounded>
__global__ void __launch_bounds__(kThreads, 1)
    hopper_backward_kernel(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse, const float* __restrict__ delta,
                           AttentionLayout layout, BlockOrder order, int first_pair, T* __restrict__ dqkv, QuerySums shared) {
  using Memory = BackwardMemory<T, H, kQueries>;
  using KeyTile = typename Memory::KeyTile;
  using QueryTile = typename Memory::QueryTile;
  using ScoreTile = typename Memory::ScoreTile;
  constexpr int kN = kQueries / 8;
  TRIREME_PANEL_SHARED(Memory, memory);
  const int thread = static_cast<int>(threadIdx.x), group = thread / kWarpgroup, lane = thread % kWarp;
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
    const int self = reread_thread();
    load_panels<H, kQueries, kThreads>(memory->queries[buffer], qkv + memory->from_queries + query * layout.columns + head * H, layout.columns,
                                       sequence - query, self);
    load_panels<H, kQueries, kThreads>(memory->douts[buffer], dout + memory->from_douts + query * layout.out_columns + head * H, layout.out_columns,
                                       sequence - query, self);
    if (self < kQueries / 4) {
      const int at = row_of(head, query) + 4 * self;
      cp_async_16(&memory->lse[buffer][4 * self], lse + at, true);
      cp_async_16(&memory->delta[buffer][4 * self], delta + at, true);
    }
    cp_async_commit();
  };
  const T* const from_keys = qkv + layout.key(memory->pair) + first_key * layout.columns;
  load_panels<H, kKeys, kThreads>(memory->keys, from_keys, layout.columns, sequence - first_key, thread);
  load_panels<H, kKeys, kThreads>(memory->values, from_keys + layout.to_values, layout.columns, sequence - first_key, thread);
  int end = sequence;  // of the queries that attend to any of the keys
  if constexpr (kBounded) {
    const int b = memory->pair / layout.kv_heads;
    end = layout.end_of_queries(b, first_key + kKeys - 1);
    if (thread < kKeys) memory->ends[thread] = layout.end_of_queries(b, first_key + thread);
    if (thread == kKeys) memory->end_before = first_key == 0 ? 0 : layout.end_of_queries(b, first_key - 1);
  }
  const int last_query = (end - 1) / kQueries * kQueries;
  load(0, 0, last_query);

  const int group_row = group * kGroupRows, lane_row = group_row + thread % kWarpgroup / kWarp * 16 + lane / 4, lane_column = lane % 4 * 2;
  const uint32_t keys = shared_address(memory->keys), values = shared_address(memory->values), dscores = shared_address(memory->dscores);
  // The warpgroup's half of the gradients of queries: 64 columns of all queries, or all columns of 64 queries.
  const int of_columns = H == 128 ? group : 0, of_queries = H == 128 ? 0 : group;
  float dkeys[H / 8][4], dvalues[H / 8][4];
#pragma unroll
  for (int n = 0; n < H / 8; ++n)
#pragma unroll
    for (int i = 0; i < 4; ++i) dkeys[n][i] = dvalues[n][i] = 0;
  int buffer = 0;
  int addend = -1, adding = -1;  // rows of queries: to which the addend of the previous step, and of the step before, belongs; -1: none
  bool store = false;            // whether the addend of the previous step is the first one to its queries
  const auto release = [&] {     // the queries of `adding`
    if (addend >= 0) {
      bulk_wait<1>();
    } else {
      bulk_wait<0>();
    }
    release_value(shared.counters + adding / kCountedQueries, static_cast<uint32_t>(first_key / kKeys + 1));
  };
  for (int query = last_query; query >= first_key; query -= kQueries)
    for (int head = 0; head < layout.group; ++head, buffer ^= 1) {
      const int row = row_of(head, query);
      const bool last = query < first_key + kKeys;
      cp_async_wait<0>();
      fence_proxy_async();
      __syncthreads();  // this step's tiles have arrived, and all threads have ended the previous step
      if (thread == 0 && addend >= 0) {
        float* const sums = shared.sums + int64_t{addend} * H;
        if (store) {
          bulk_store(sums, memory->addends[buffer ^ 1], kQueries * H * 4);
        } else {
          bulk_add(sums, memory->addends[buffer ^ 1], kQueries * H * 4);
        }
        bulk_commit();
      }
      const bool other_head = head + 1 < layout.group;
      if (other_head || query > first_key) load(buffer ^ 1, other_head ? head + 1 : 0, other_head ? query : query - kQueries);

      const uint32_t queries = shared_address(memory->queries[buffer]), douts = shared_address(memory->douts[buffer]);
      float p[kN][4], dp[kN][4];
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < H / 16; ++step)
        wgmma<T, kQueries, false, false>(p, KeyTile::along_columns(keys, group_row, step), QueryTile::along_columns(queries, 0, step), step > 0);
      wgmma_commit();
#pragma unroll
      for (int step = 0; step < H / 16; ++step)
        wgmma<T, kQueries, false, false>(dp, KeyTile::along_columns(values, group_row, step), QueryTile::along_columns(douts, 0, step), step > 0);
      wgmma_commit();

      wgmma_wait<1>();
      pin(p);
      probabilities_of<kN>(p, memory->lse[buffer] + lane_column, layout.scale_log2);
      // Whether a query of the tile does not attend to a key of the warpgroup.
      bool partly = query < first_key + group_row + kGroupRows - 1;
      if constexpr (kBounded) partly |= query + kQueries > memory->ends[group_row];
      if (partly) {
        const int column = query + lane_column;
        int ends[2] = {};
        if constexpr (kBounded) ends[0] = memory->ends[lane_row] - column, ends[1] = memory->ends[lane_row + 8] - column;
        mask<kN, kBounded>(p, column - first_key - lane_row, ends);
      }
      uint32_t probabilities[kN / 2][4], gradients[kN / 2][4];
      pack_operands<T, kN>(probabilities, p);
      wgmma_wait<0>();
      pin(dp);
      const float* const of_delta = memory->delta[buffer] + lane_column;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        const float2 of = *reinterpret_cast<const float2*>(of_delta + 8 * n);
#pragma unroll
        for (int i = 0; i < 4; ++i) dp[n][i] = p[n][i] * (dp[n][i] - (i % 2 == 0 ? of.x : of.y));
      }
      pack_operands<T, kN>(gradients, dp);
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kQueries / 16; ++step) wgmma<T, H, true>(dvalues, probabilities[step], QueryTile::along_rows(douts, 0, step), true);
      wgmma_commit();
#pragma unroll
      for (int step = 0; step < kN / 2; ++step)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          *reinterpret_cast<uint32_t*>(memory->dscores + ScoreTile::offset(lane_row + i % 2 * 8, 2 * step + i / 2) + lane % 4 * 4) =
              gradients[step][i];
#pragma unroll
      for (int step = 0; step < kQueries / 16; ++step) wgmma<T, H, true>(dkeys, gradients[step], QueryTile::along_rows(queries, 0, step), true);
      wgmma_commit();
      fence_proxy_async();
      if (thread == 0 && adding >= 0) release();
      adding = addend;
      const bool is_first = kBounded ? memory->end_before <= query : first_key == 0;  // of the blocks that add to these queries
      if (thread == kWarp && !is_first) wait_for_value(shared.counters + row / kCountedQueries, static_cast<uint32_t>(first_key / kKeys));
      __syncthreads();  // the gradients of scores are complete; so are the addition of two steps before, and the sums of the blocks before
      float dqueries[8][4];
      wgmma_fence();
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        wgmma<T, 64, true, true>(dqueries, ScoreTile::along_rows(dscores, of_queries, step), KeyTile::along_rows(keys, of_columns, step), step > 0);
      wgmma_commit();
      wgmma_wait<0>();
      pin(dqueries);
      pin(dkeys);
      pin(dvalues);
      if (!last) {
#pragma unroll
        for (int n = 0; n < 8; ++n) store_vector(memory->addends[buffer] + (n * kThreads + thread) * 4, dqueries[n]);
        addend = row;  // a fence and a barrier follow in the next step
        store = is_first;
        continue;
      }
      addend = -1;
      if (!is_first) {
        const float* const sums = shared.sums + int64_t{row} * H;
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          float before[4];
          load_vector(sums + (n * kThreads + thread) * 4, before);
#pragma unroll
          for (int i = 0; i < 4; ++i) dqueries[n][i] += before[i];
        }
      }
      auto* const result = reinterpret_cast<unsigned char*>(memory->addends[buffer]);
      put_panels<T, 64, kQueries>(result + of_columns * QueryTile::kPanelBytes, of_queries * kGroupRows, dqueries, thread,
                                  [&](int) { return layout.scale; });
      __syncthreads();
      store_panels<H, kQueries, kThreads>(thread, result, 0, kQueries, dqkv + memory->from_queries + query * layout.columns + head * H,
                                          layout.columns, sequence - query);
    }

  addend = -1;
  if (thread == 0 && adding >= 0) release();
  // The last step was on the diagonal. No product has read keys or values since its last barrier, so their gradients are staged there.
  put_panels<T, H, kKeys>(memory->keys, group_row, dkeys, thread, [&](int) { return layout.scale; });
  put_panels<T, H, kKeys>(memory->values, group_row, dvalues, thread, [](int) { return 1.0F; });
  __syncthreads();
  T* const to_keys = dqkv + layout.key(memory->pair) + first_key * layout.columns;
  store_panels<H, kKeys, kThreads>(thread, memory->keys, 0, kKeys, to_keys, layout.columns, sequence - first_key);
  store_panels<H, kKeys, kThreads>(thread, memory->values, 0, kKeys, to_keys + layout.to_values, layout.columns, sequence - first_key);
}

template <class T, int H>
void backward(const Context& ctx, const AttentionBackward<T>& t, const AttentionShape& shape) {
  constexpr int kQueries = H == 128 ? 64 : 128;
  // As many pairs at once as have their sums in the cache. Fewer would make their blocks wait for each other, more reread all sums from memory: of 8
  // sequences of 2048 tokens and 16 heads of size 128 an H100 computes 284 TFLOP/s with 32 pairs at once, 258 with 16, and 224 with all 128.
  const BlockOrder order(t.pairs, ceil_div(shape.sequence, kKeys), shape.sequence * H * 4 * t.layout.group);
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
