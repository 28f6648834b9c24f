// Flash attention on sm_90a, forward, by products of warpgroups (wgmma: warpgroup matrix multiply-accumulate). As in flash attention 3 (Shah et al.
// 2024, arXiv:2407.08608), the warpgroups of a block have two roles and meet at named barriers. One loads tiles, and leaves most of its registers to
// the others. Each of these computes 64 queries of one head, and all share the tiles of keys and values. The scores of the next tile and the product
// with the values of this one run together. Scores, probabilities and sums stay in registers.
//
// An item is kRows queries of one head. There are no more blocks than multiprocessors. The first item of a block is that of its index, and it takes
// each further one by a ticket, because items differ in length: a block that has had short ones takes more of them. Steps of a block are numbered
// through all its items, and so are the tiles of keys and values. Step t multiplies the keys of tile t + 1 and the values of tile t; the keys of tile 0
// are multiplied before step 0. Therefore the last step of an item computes the first scores of the next one, whose queries and first keys have been
// loaded by then.
#include "kernels/cuda/attention_hopper.h"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/attention_panels.cuh"

namespace trireme::cuda {
namespace {

constexpr int kKeys = 128;     // of a tile
constexpr int kItemSlots = 4;  // of the ring of items that a block has taken

/// Roles and sizes of a block. There are as many computing warpgroups as leave each thread the registers for its sums, scores and probabilities.
template <int H>
struct Block {
  static constexpr int kGroups = H == 64 ? 3 : 2;
  static constexpr int kComputing = kGroups * kWarpgroup, kLoading = kWarpgroup;  // threads
  static constexpr int kThreads = kComputing + kLoading;
  static constexpr int kComputingRegisters = H == 64 ? 160 : 232, kLoadingRegisters = H == 64 ? 32 : 40;
  static constexpr int kRows = kGroups * kGroupRows;  // queries

  // Named barriers. Those of step t are of slot t % 2, which contains the values of the step; its keys are in the other slot.
  static constexpr int kRead = 1;    // + slot: the computing warpgroups arrive when they have read a step's tiles, and the loading one waits
  static constexpr int kLoaded = 3;  // + slot + 2 * group: the loading warpgroup arrives with a step's tiles, and the computing one `group` waits
  static constexpr int kTaken = kLoaded + 2 * kGroups;  // the loading warpgroup meets when its first thread has taken the second item
};

template <int H>
struct ForwardMemory {
  using QueryTile = Panels<H, Block<H>::kRows>;
  using KeyTile = Panels<H, kKeys>;
  alignas(1024) unsigned char queries[2][QueryTile::kBytes];  // of this item and the next
  unsigned char keys[2][KeyTile::kBytes], values[2][KeyTile::kBytes];
  int items[kItemSlots];  // of round r in slot r % kItemSlots
};

/// Walks over the tiles of keys of a block's items.
template <int H, bool kBounded>
struct Tiles {
  const AttentionLayout& layout;
  const BlockOrder& order;
  const int (&items)[kItemSlots];
  int round = 0;           // the number of the item among those of the block
  int head, first_row;     // of the item
  int first_key, end_key;  // the keys that its queries attend to
  int key;                 // the first one of the tile
  bool more = true;

  __device__ Tiles(const AttentionLayout& of_layout, const BlockOrder& of_order, const int (&of_items)[kItemSlots])
      : layout(of_layout), order(of_order), items(of_items) {
    begin(static_cast<int>(blockIdx.x));
  }
  __device__ void begin(int index) {
    more = index < order.blocks();
    if (!more) return;
    const auto [item, place] = order.place(index);
    head = item;
    first_row = (order.tiles - 1 - place) * Block<H>::kRows;
    first_key = kBounded ? layout.first_key(head / layout.heads, first_row) / kKeys * kKeys : 0;  // so that tiles do not depend on blocks
    end_key = first_row + Block<H>::kRows < layout.sequence ? first_row + Block<H>::kRows : layout.sequence;
    key = first_key;
  }
  /// All lanes of a warp must call. By the shuffle the compiler knows that all of them get one item.
  __device__ void next_item() {
    ++round;
    begin(__shfl_sync(~0u, items[round % kItemSlots], 0));
  }
  __device__ void advance() {
    key += kKeys;
    if (key >= end_key) next_item();
  }
  __device__ bool begins_item() const { return more && key == first_key; }
};

/// The loading warpgroup. In step t it loads the keys of tile t + 1, and `tile` goes from tile t to that one.
///
/// If tile t + 1 begins an item, of round r, then thread 0 takes the item of round r + 1 and writes it before it arrives at kLoaded of step t. The
/// ticket's latency is thus hidden behind loads. The others read that item no earlier than in step t + 1, where tile t + 2 may begin it:
///  - Loading threads read it behind the barrier kRead of step t + 1, to which thread 0 also goes. Before step 1 there is no kRead, but kTaken.
///  - Computing warpgroups read it in the last step of round r, at the earliest t + 1, and have waited for kLoaded of step t before.
/// The item of round r + 3 is taken in step t + 2 at the earliest, where the loading warpgroup waits until the computing ones have finished step t. They
/// read the item of round r in their step t, the last one of round r - 1. Therefore three slots are enough, even if each item has one tile. A fourth
/// one makes the index a mask.
template <class T, int H, bool kBounded>
__device__ inline void load_tiles(ForwardMemory<H>& memory, Tiles<H, kBounded> tile, const T* qkv, uint32_t* ticket, int thread) {
  using B = Block<H>;
  const AttentionLayout& layout = tile.layout;
  uint32_t taken = 0;  // by thread 0
  const auto load_keys = [&](int slot) {
    if (!tile.more) return;
    if (tile.begins_item()) {
      // Each block takes tickets up to the first one beyond the last item. The blocks take `blocks` tickets together, so the last one wraps the counter
      // to zero, where the next launch needs it.
      if (thread == 0) taken = atomicInc(ticket, static_cast<uint32_t>(tile.order.blocks() - 1));
      const T* const queries = qkv + layout.query(tile.head) + tile.first_row * layout.columns;
      load_panels<H, B::kRows, B::kLoading>(memory.queries[tile.round % 2], queries, layout.columns, layout.sequence - tile.first_row, thread);
    }
    const T* const from = qkv + layout.key(tile.head / layout.group) + tile.key * layout.columns;
    load_panels<H, kKeys, B::kLoading>(memory.keys[slot], from, layout.columns, tile.end_key - tile.key, thread);
  };
  const auto load_values = [&](int slot) {
    const T* const from = qkv + layout.value(tile.head / layout.group) + tile.key * layout.columns;
    load_panels<H, kKeys, B::kLoading>(memory.values[slot], from, layout.columns, tile.end_key - tile.key, thread);
  };
  const auto hand_on = [&] {  // what was taken with the keys of this tile
    if (thread == 0 && tile.begins_item()) memory.items[(tile.round + 1) % kItemSlots] = static_cast<int>(gridDim.x + taken);
  };
  const auto loaded = [&](int slot) {
    fence_proxy_async();
#pragma unroll
    for (int group = 0; group < B::kGroups; ++group) barrier_arrive(B::kLoaded + slot + 2 * group, B::kLoading + kWarpgroup);
  };
  load_keys(0);
  cp_async_commit();
  load_values(0);
  hand_on();
  barrier_sync(B::kTaken, B::kLoading);
  tile.advance();
  load_keys(1);
  cp_async_commit();
  cp_async_wait<1>();
  loaded(1);
  cp_async_wait<0>();
  hand_on();
  loaded(0);
  // A step's tiles replace those of two steps before. The queries of an item replace those of two items before, which were read no later.
  for (int slot = 1; tile.more; slot ^= 1) {
    barrier_sync(B::kRead + slot, B::kThreads);
    load_values(slot);
    tile.advance();
    load_keys(slot ^ 1);
    cp_async_commit();
    cp_async_wait<0>();
    hand_on();
    loaded(slot);
  }
}

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

/// Each lane of a quad has one word of each of four tiles, two columns of its 8; of tile q, lane q gets the four words.
__device__ inline void transpose_quad(uint32_t (&words)[4], int lane) {
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if ((i & distance) != 0) continue;
      const bool upper = (lane & distance) != 0;  // gives the first word of a pair and keeps the second one
      const uint32_t given = __shfl_xor_sync(~0u, upper ? words[i] : words[i + distance], distance);
      (upper ? words[i] : words[i + distance]) = given;
    }
}

/// A computing warpgroup. `thread`: of kComputing.
template <class T, int H, bool kBounded>
__device__ inline void compute(ForwardMemory<H>& memory, Tiles<H, kBounded> tile, T* out, float* lse, int thread) {
  using B = Block<H>;
  using QueryTile = typename ForwardMemory<H>::QueryTile;
  using KeyTile = typename ForwardMemory<H>::KeyTile;
  const AttentionLayout& layout = tile.layout;
  const int lane = thread % kWarp, group = warpgroup_of(thread), group_row = group * kGroupRows;
  const int lane_row = group_row + thread % kWarpgroup / kWarp * 16 + lane / 4;
  float sums[H / 8][4], scores[kKeys / 8][4], factor[2];
  uint32_t probabilities[kKeys / 16][4];
  SoftmaxRows rows;
  int reach[2] = {};
  const auto add_scores = [&](int item, int slot) {
    const uint32_t queries = shared_address(memory.queries[item]), keys = shared_address(memory.keys[slot]);
#pragma unroll
    for (int step = 0; step < H / 16; ++step)
      wgmma<T, kKeys, false, false>(scores, QueryTile::along_columns(queries, group_row, step), KeyTile::along_columns(keys, 0, step), step > 0);
    wgmma_commit();
  };
  const auto add_values = [&](int slot) {
    const uint32_t values = shared_address(memory.values[slot]);
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step) wgmma<T, H, true>(sums, probabilities[step], KeyTile::along_rows(values, 0, step), true);
    wgmma_commit();
  };
  // Softmax of the scores of the tile of keys from `key` on. They need no mask if all of the warpgroup's queries attend to all keys of the tile.
  const auto softmax = [&](int key) {
    const int row = tile.first_row + lane_row;
    bool partly = key + kKeys - 1 > tile.first_row + group_row;
    if constexpr (kBounded) partly |= key < row - reach[0] || key < row - reach[1];
    if (kBounded ? __any_sync(~0u, partly) : partly) mask<kBounded>(scores, row - key - lane % 4 * 2, reach);
    return online_softmax(scores, rows, factor, layout.scale_log2);
  };
  const auto wait_loaded = [&](int slot) { barrier_sync(B::kLoaded + slot + 2 * group, B::kLoading + kWarpgroup); };

  wait_loaded(1);
  wgmma_fence();
  add_scores(0, 0);
  wgmma_wait<0>();
  pin(scores);
  barrier_arrive(B::kRead + 1, B::kThreads);
  int slot = 0;
  while (tile.more) {
#pragma unroll
    for (int n = 0; n < H / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) sums[n][i] = 0;
    pin(sums);
    rows.highest[0] = rows.highest[1] = AttentionLayout::first_maximum(kBounded), rows.sum[0] = rows.sum[1] = 0;
    if constexpr (kBounded) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.first_row + lane_row;
        reach[half] = row - layout.first_key(tile.head / layout.heads, row + 8 * half);
      }
    }
    softmax(tile.key);  // the sums are still zero
    pack_operands<T, kKeys / 8>(probabilities, scores);
    for (int key = tile.key + kKeys; key < tile.end_key; key += kKeys, slot ^= 1) {
      wait_loaded(slot);
      wgmma_fence();
      add_scores(tile.round % 2, slot ^ 1);
      add_values(slot);
      wgmma_wait<1>();
      pin(scores);
      const bool grows = softmax(key);
      pin(scores);
      wgmma_wait<0>();
      pin(sums);
      barrier_arrive(B::kRead + slot, B::kThreads);
      if (grows) {
#pragma unroll
        for (int n = 0; n < H / 8; ++n)
#pragma unroll
          for (int i = 0; i < 4; ++i) sums[n][i] *= factor[i / 2];
      }
      pack_operands<T, kKeys / 8>(probabilities, scores);
    }
    const int head = tile.head, row = tile.first_row + lane_row, last = tile.round % 2;
    tile.next_item();
    wait_loaded(slot);
    wgmma_fence();
    // These are the first scores of the next item. Behind the last item they are of loaded tiles and unused: in a branch, the product would not be
    // asynchronous.
    add_scores(tile.more ? last ^ 1 : last, tile.more ? slot ^ 1 : slot);
    add_values(slot);
    wgmma_wait<0>();
    pin(sums);
    pin(scores);
    barrier_arrive(B::kRead + slot, B::kThreads);
    slot ^= 1;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = rows.sum[half];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      const int of = row + 8 * half;
      if (lane % 4 == 0 && of < layout.sequence)
        lse[int64_t{head} * layout.sequence + of] = (rows.highest[half] * layout.scale_log2 + log2f(sum)) * kLn2;
      const float by = 1 / sum;
      T* const to = out + layout.output(head) + of * layout.out_columns + lane % 4 * 8;
#pragma unroll
      for (int n = 0; n < H / 8; n += 4) {
        uint32_t words[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = pack_pair<T>(sums[n + k][2 * half] * by, sums[n + k][2 * half + 1] * by);
        transpose_quad(words, lane);
        if (of < layout.sequence) store_words(to + n * 8, make_uint4(words[0], words[1], words[2], words[3]));
      }
    }
  }
}

template <class T, int H, bool kBounded>
__global__ void __launch_bounds__(Block<H>::kThreads, 1)
    hopper_forward_kernel(const T* __restrict__ qkv, AttentionLayout layout, BlockOrder order, uint32_t* __restrict__ ticket, T* __restrict__ out,
                          float* __restrict__ lse) {
  using B = Block<H>;
  TRIREME_PANEL_SHARED(ForwardMemory<H>, memory);
  const Tiles<H, kBounded> tiles(layout, order, memory->items);
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < B::kComputing) {
    raise_registers<B::kComputingRegisters>();
    compute(*memory, tiles, out, lse, thread);
  } else {
    lower_registers<B::kLoadingRegisters>();
    load_tiles(*memory, tiles, qkv, ticket, thread - B::kComputing);
  }
}

template <class T, int H>
void forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse) {
  using B = Block<H>;
  const BlockOrder order(shape.batch * shape.heads, ceil_div(shape.sequence, B::kRows), shape.sequence * H * 4 * shape.kv_heads / shape.heads);
  const dim3 grid(std::min(order.grid().x, static_cast<unsigned>(ctx.gpu->properties().multiprocessors)));
  dispatch_bounded(layout, [&](auto bounded) {
    launch(ctx, hopper_forward_kernel<T, H, bounded>, {grid, dim3(B::kThreads), sizeof(ForwardMemory<H>)}, qkv, layout, order, ctx.gpu->ticket(), out,
           lse);
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
