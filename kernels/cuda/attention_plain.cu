// Attention on fp32 units for any head size up to 256 and any alignment. Tiles are fp32 in shared memory. A block owns 16 rows (queries, or keys for
// their gradients), a warp four of them. A step multiplies them with 32 rows of the other operand, one per lane; lane h % 32 sums column h.
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpRows = 4;
constexpr int kRows = kThreads / kWarp * kWarpRows;
constexpr int kColumns = kWarp;

/// Floats between rows of a tile: odd, so that lanes that read one column of different rows have no bank conflicts.
__host__ __device__ constexpr int tile_stride(int head_size) { return head_size | 1; }

/// Shared memory for kRows rows of one or two tensors, kColumns rows of two others, the weights of the second products, and for each of the kRows
/// rows the first key of a query or the end of the queries of a key.
constexpr int64_t shared_bytes(int64_t head_size, int row_tensors) {
  return ((row_tensors * kRows + 2 * kColumns) * tile_stride(static_cast<int>(head_size)) + kRows * kColumns + kRows) *
         static_cast<int64_t>(sizeof(float));
}

/// All threads of the block copy `rows` rows to a tile, with zeros from row `there` on.
template <class T>
__device__ inline void load_rows(float* tile, int rows, const T* from, int64_t stride, int there, int head_size) {
  for (int i = static_cast<int>(threadIdx.x); i < rows * head_size; i += kThreads) {
    const int row = i / head_size, column = i % head_size;
    tile[row * tile_stride(head_size) + column] = row < there ? to_float(from[row * stride + column]) : 0;
  }
}

/// Dot products of the warp's rows with the lane's row of the other tile.
__device__ inline void multiply(const float* rows, const float* lane_row, int head_size, float (&products)[kWarpRows]) {
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) products[r] = 0;
  for (int h = 0; h < head_size; ++h) {
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) products[r] = fmaf(rows[r * tile_stride(head_size) + h], lane_row[h], products[r]);
  }
}

/// Sums of a warp's rows over H; this lane's columns are lane, lane + 32, ...
template <int kPieces>
using RowSums = float[kWarpRows][kPieces];

template <int kPieces>
__device__ inline void clear(RowSums<kPieces>& sums) {
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r)
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) sums[r][piece] = 0;
}

/// sums[r] += sum over j of (lane j's weights[r]) * (row j of the tile). The weights are exchanged through the warp's part of shared memory.
template <int kPieces>
__device__ inline void add_product(RowSums<kPieces>& sums, const float (&weights)[kWarpRows], float* warp_weights, const float* tile, int head_size) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  __syncwarp();
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) warp_weights[r * kColumns + lane] = weights[r];
  __syncwarp();
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = lane + piece * kWarp;
      if (column < head_size) {
        const float value = tile[j * tile_stride(head_size) + column];
#pragma unroll
        for (int r = 0; r < kWarpRows; ++r) sums[r][piece] = fmaf(warp_weights[r * kColumns + j], value, sums[r][piece]);
      }
    }
  }
}

/// Stores the sums times factors[r] to the warp's rows of `to`, of which the first `there` exist.
template <int kPieces, class T>
__device__ inline void store_rows(const RowSums<kPieces>& sums, const float (&factors)[kWarpRows], T* to, int64_t stride, int there, int head_size) {
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
      const int column = static_cast<int>(threadIdx.x) % kWarp + piece * kWarp;
      if (r < there && column < head_size) to[r * stride + column] = from_float<T>(sums[r][piece] * factors[r]);
    }
  }
}

template <int kPieces, class T>
__global__ void __launch_bounds__(kThreads, 3)
    plain_forward_kernel(const T* __restrict__ qkv, AttentionLayout layout, BlockOrder order, T* __restrict__ out, float* __restrict__ lse) {
  TRIREME_DYNAMIC_SHARED(float, queries);
  const int head_size = layout.head_size, stride = tile_stride(head_size);
  float* const keys = queries + kRows * stride;
  float* const values = keys + kColumns * stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp_rows = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  float* const weights = values + kColumns * stride + warp_rows * kColumns;
  int* const bounds = reinterpret_cast<int*>(values + kColumns * stride + kRows * kColumns);
  const auto [head, place] = order.place();
  const int first_row = (order.tiles - 1 - place) * kRows, row = first_row + warp_rows, pair = head / layout.group, b = head / layout.heads;
  load_rows(queries, kRows, qkv + layout.query(head) + first_row * layout.columns, layout.columns, layout.sequence - first_row, head_size);

  if (threadIdx.x < kRows) bounds[threadIdx.x] = layout.first_key(b, first_row + static_cast<int>(threadIdx.x));
  RowSums<kPieces> sums;
  clear<kPieces>(sums);
  float highest[kWarpRows], total[kWarpRows];  // `total` covers only this lane's keys
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) highest[r] = layout.first_maximum(layout.bounded()), total[r] = 0;
  for (int key = layout.first_key(b, first_row); key < first_row + kRows && key < layout.sequence; key += kColumns) {
    __syncthreads();
    load_rows(keys, kColumns, qkv + layout.key(pair) + key * layout.columns, layout.columns, layout.sequence - key, head_size);
    load_rows(values, kColumns, qkv + layout.value(pair) + key * layout.columns, layout.columns, layout.sequence - key, head_size);
    __syncthreads();
    float p[kWarpRows];
    multiply(queries + warp_rows * stride, keys + lane * stride, head_size, p);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const bool seen = key + lane <= row + r && key + lane >= bounds[warp_rows + r];
      const float score = seen ? p[r] * layout.scale : -INFINITY;
      const float maximum = fmaxf(highest[r], warp_max(score)), factor = expf(highest[r] - maximum);  // finite from the first step on
      highest[r] = maximum;
      p[r] = expf(score - maximum);
      total[r] = fmaf(total[r], factor, p[r]);
#pragma unroll
      for (int piece = 0; piece < kPieces; ++piece) sums[r][piece] *= factor;
    }
    add_product<kPieces>(sums, p, weights, values, head_size);
  }
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) {
    total[r] = warp_sum(total[r]);
    if (lane == 0 && row + r < layout.sequence) lse[int64_t{head} * layout.sequence + row + r] = highest[r] + logf(total[r]);
    total[r] = 1 / total[r];
  }
  store_rows<kPieces>(sums, total, out + layout.output(head) + row * layout.out_columns, layout.out_columns, layout.sequence - row, head_size);
}

template <int kPieces, class T>
__global__ void __launch_bounds__(kThreads, 3)
    plain_query_gradients_kernel(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse,
                                 const float* __restrict__ delta, AttentionLayout layout, BlockOrder order, int first_head, T* __restrict__ dqkv) {
  TRIREME_DYNAMIC_SHARED(float, queries);
  const int head_size = layout.head_size, stride = tile_stride(head_size);
  float* const douts = queries + kRows * stride;
  float* const keys = douts + kRows * stride;
  float* const values = keys + kColumns * stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp_rows = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  float* const weights = values + kColumns * stride + warp_rows * kColumns;
  int* const bounds = reinterpret_cast<int*>(values + kColumns * stride + kRows * kColumns);
  const auto [item, place] = order.place();
  const int first_row = (order.tiles - 1 - place) * kRows, row = first_row + warp_rows;
  const int head = first_head + item, pair = head / layout.group, b = head / layout.heads;
  load_rows(queries, kRows, qkv + layout.query(head) + first_row * layout.columns, layout.columns, layout.sequence - first_row, head_size);
  load_rows(douts, kRows, dout + layout.output(head) + first_row * layout.out_columns, layout.out_columns, layout.sequence - first_row, head_size);

  if (threadIdx.x < kRows) bounds[threadIdx.x] = layout.first_key(b, first_row + static_cast<int>(threadIdx.x));
  RowSums<kPieces> sums;
  clear<kPieces>(sums);
  const int64_t statistics = item * statistics_stride(layout.sequence) + row;
  for (int key = layout.first_key(b, first_row); key < first_row + kRows && key < layout.sequence; key += kColumns) {
    __syncthreads();
    load_rows(keys, kColumns, qkv + layout.key(pair) + key * layout.columns, layout.columns, layout.sequence - key, head_size);
    load_rows(values, kColumns, qkv + layout.value(pair) + key * layout.columns, layout.columns, layout.sequence - key, head_size);
    __syncthreads();
    float scores[kWarpRows], ds[kWarpRows];
    multiply(queries + warp_rows * stride, keys + lane * stride, head_size, scores);
    multiply(douts + warp_rows * stride, values + lane * stride, head_size, ds);
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) {
      const bool seen = key + lane <= row + r && key + lane >= bounds[warp_rows + r];
      const float p = seen ? expf(scores[r] * layout.scale - lse[statistics + r]) : 0;
      ds[r] = p * (ds[r] - delta[statistics + r]);
    }
    add_product<kPieces>(sums, ds, weights, keys, head_size);
  }
  float scales[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) scales[r] = layout.scale;
  store_rows<kPieces>(sums, scales, dqkv + layout.query(head) + row * layout.columns, layout.columns, layout.sequence - row, head_size);
}

/// Sums over the query heads of a pair in order, and within each from the first to the last query that sees a key of the block.
template <int kPieces, class T>
__global__ void __launch_bounds__(kThreads, 3)
    plain_key_gradients_kernel(const T* __restrict__ dout, const T* __restrict__ qkv, const float* __restrict__ lse, const float* __restrict__ delta,
                               AttentionLayout layout, BlockOrder order, int first_pair, T* __restrict__ dqkv) {
  TRIREME_DYNAMIC_SHARED(float, keys);
  const int head_size = layout.head_size, stride = tile_stride(head_size), sequence = layout.sequence;
  float* const values = keys + kRows * stride;
  float* const queries = values + kRows * stride;
  float* const douts = queries + kColumns * stride;
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp_rows = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
  float* const weights = douts + kColumns * stride + warp_rows * kColumns;
  int* const bounds = reinterpret_cast<int*>(douts + kColumns * stride + kRows * kColumns);
  const auto [item, tile] = order.place();
  const int pair = first_pair + item, first_key = tile * kRows, row = first_key + warp_rows, b = pair / layout.kv_heads;
  const int end = layout.end_of_queries(b, first_key + kRows - 1);
  load_rows(keys, kRows, qkv + layout.key(pair) + first_key * layout.columns, layout.columns, sequence - first_key, head_size);
  load_rows(values, kRows, qkv + layout.value(pair) + first_key * layout.columns, layout.columns, sequence - first_key, head_size);

  if (threadIdx.x < kRows) bounds[threadIdx.x] = layout.end_of_queries(b, first_key + static_cast<int>(threadIdx.x));
  RowSums<kPieces> dkeys, dvalues;
  clear<kPieces>(dkeys);
  clear<kPieces>(dvalues);
  for (int member = 0; member < layout.group; ++member) {
    const int head = pair * layout.group + member;
    const int64_t statistics = (item * layout.group + member) * statistics_stride(sequence);
    for (int first = first_key; first < end; first += kColumns) {
      __syncthreads();
      load_rows(queries, kColumns, qkv + layout.query(head) + first * layout.columns, layout.columns, end - first, head_size);
      load_rows(douts, kColumns, dout + layout.output(head) + first * layout.out_columns, layout.out_columns, end - first, head_size);
      __syncthreads();
      const int query = first + lane;
      const bool there = query < end;
      const float query_lse = there ? lse[statistics + query] : 0, query_delta = there ? delta[statistics + query] : 0;
      float p[kWarpRows], ds[kWarpRows];
      multiply(keys + warp_rows * stride, queries + lane * stride, head_size, p);
      multiply(values + warp_rows * stride, douts + lane * stride, head_size, ds);
#pragma unroll
      for (int r = 0; r < kWarpRows; ++r) {
        const bool seen = query >= row + r && query < bounds[warp_rows + r];
        p[r] = seen ? expf(p[r] * layout.scale - query_lse) : 0;
        ds[r] = p[r] * (ds[r] - query_delta);
      }
      add_product<kPieces>(dvalues, p, weights, douts, head_size);
      add_product<kPieces>(dkeys, ds, weights, queries, head_size);
    }
  }
  float scales[kWarpRows], ones[kWarpRows];
#pragma unroll
  for (int r = 0; r < kWarpRows; ++r) scales[r] = layout.scale, ones[r] = 1;
  store_rows<kPieces>(dkeys, scales, dqkv + layout.key(pair) + row * layout.columns, layout.columns, sequence - row, head_size);
  store_rows<kPieces>(dvalues, ones, dqkv + layout.value(pair) + row * layout.columns, layout.columns, sequence - row, head_size);
}

/// Calls body(pieces) with the number of columns per lane as a compile-time constant.
template <class Body>
void dispatch_pieces(int64_t head_size, Body&& body) {
  if (head_size <= 32) return body(std::integral_constant<int, 1>{});
  if (head_size <= 64) return body(std::integral_constant<int, 2>{});
  if (head_size <= 128) return body(std::integral_constant<int, 4>{});
  return body(std::integral_constant<int, kPlainHeadSize / kWarp>{});
}

}  // namespace

template <class T>
void plain_forward(const Context& ctx, const T* qkv, const AttentionShape& shape, const AttentionLayout& layout, T* out, float* lse) {
  const BlockOrder order(shape.batch * shape.heads, ceil_div(shape.sequence, kRows), 2 * shape.sequence * shape.head_size * sizeof(T) / layout.group);
  dispatch_pieces(shape.head_size, [&](auto pieces) {
    launch(ctx, plain_forward_kernel<pieces, T>, {order.grid(), dim3(kThreads), shared_bytes(shape.head_size, 1)}, qkv, layout, order, out, lse);
  });
}

template <class T>
void plain_backward(const Context& ctx, const AttentionBackward<T>& t, const AttentionShape& shape) {
  const AttentionLayout& layout = t.layout;
  const int64_t tiles = ceil_div(shape.sequence, kRows), bytes = 2 * shape.sequence * shape.head_size * static_cast<int64_t>(sizeof(T));
  const BlockOrder keys(t.pairs, tiles, bytes * layout.group), queries(t.pairs * layout.group, tiles, bytes / layout.group);
  const int64_t shared = shared_bytes(shape.head_size, 2);
  dispatch_pieces(shape.head_size, [&](auto pieces) {
    launch(ctx, plain_key_gradients_kernel<pieces, T>, {keys.grid(), dim3(kThreads), shared}, t.dout, t.qkv, t.lse, t.delta, layout, keys,
           static_cast<int>(t.first_pair), t.dqkv);
    launch(ctx, plain_query_gradients_kernel<pieces, T>, {queries.grid(), dim3(kThreads), shared}, t.dout, t.qkv, t.lse, t.delta, layout, queries,
           static_cast<int>(t.first_pair * layout.group), t.dqkv);
  });
}

template void plain_forward(const Context&, const float*, const AttentionShape&, const AttentionLayout&, float*, float*);
template void plain_forward(const Context&, const bfloat16*, const AttentionShape&, const AttentionLayout&, bfloat16*, float*);
template void plain_forward(const Context&, const float16*, const AttentionShape&, const AttentionLayout&, float16*, float*);
template void plain_backward(const Context&, const AttentionBackward<float>&, const AttentionShape&);
template void plain_backward(const Context&, const AttentionBackward<bfloat16>&, const AttentionShape&);
template void plain_backward(const Context&, const AttentionBackward<float16>&, const AttentionShape&);

}  // namespace trireme::cuda
