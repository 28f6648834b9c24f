#include "kernels/cuda/embedding.h"

#include "kernels/cuda/reduce.cuh"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {
namespace {

constexpr int kBlock = 256;
constexpr int kWarps = kBlock / kWarp;

/// One thread per N elements of y, `row_accesses` threads per row.
template <class T, int N>
__global__ void __launch_bounds__(kBlock)
    embedding_forward_kernel(const int32_t* __restrict__ tokens, const T* __restrict__ w, int64_t vocab_begin, int64_t vocab_rows, T* __restrict__ y,
                             uint32_t accesses, uint32_t row_accesses, int64_t columns) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  if (access >= accesses) return;
  const int64_t m = access / row_accesses, column = int64_t{access % row_accesses} * N;
  const int64_t row = tokens[m] - vocab_begin;
  float values[N] = {};
  if (row >= 0 && row < vocab_rows) load_vector(w + row * columns + column, values);
  store_vector(y + m * columns + column, values);
}

template <class T, int N>
__global__ void __launch_bounds__(kBlock) position_forward_kernel(const T* __restrict__ w, uint32_t first_position, uint32_t sequence_length,
                                                                  T* __restrict__ y, uint32_t accesses, uint32_t row_accesses, int64_t columns) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  if (access >= accesses) return;
  const uint32_t m = access / row_accesses;
  const int64_t column = int64_t{access % row_accesses} * N, position = (int64_t{first_position} + m) % sequence_length;
  float values[N], added[N];
  load_vector(y + m * columns + column, values);
  load_vector(w + position * columns + column, added);
#pragma unroll
  for (int i = 0; i < N; ++i) values[i] += added[i];
  store_vector(y + m * columns + column, values);
}

/// dw[(first_position + m) % sequence_length] += dy[m]: each thread owns N columns of one position and adds its rows in order.
template <class T, int N>
__global__ void __launch_bounds__(kBlock)
    position_backward_kernel(const T* __restrict__ dy, uint32_t first_position, uint32_t sequence_length, float* __restrict__ dw, int64_t rows,
                             uint32_t accesses, uint32_t row_accesses, int64_t columns) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  if (access >= accesses) return;
  const uint32_t position = access / row_accesses;
  const int64_t column = int64_t{access % row_accesses} * N;
  const int64_t first = position >= first_position ? position - first_position : int64_t{position} + sequence_length - first_position;
  if (first >= rows) return;
  float sum[N];
  load_vector(dw + position * columns + column, sum);
#pragma unroll 4
  for (int64_t m = first; m < rows; m += sequence_length) {
    float gradient[N];
    load_vector(dy + m * columns + column, gradient);
#pragma unroll
    for (int i = 0; i < N; ++i) sum[i] += gradient[i];
  }
  store_vector(dw + position * columns + column, sum);
}

// ---- gradient of the embedding table ----
// Each block owns kBlock * N columns of a range of rows of dw. It iterates over all tokens, one tile at a time: each warp lists, in order, the tokens
// of its part of the tile whose rows the block owns; then all threads add the listed rows of dy, warp by warp, in token order.

constexpr int kScan = 8;              // tokens per thread and tile
constexpr int kPart = kScan * kWarp;  // tokens per warp and tile
constexpr int kTile = kPart * kWarps;
constexpr int kHits = 8;                   // listed rows of dy in flight
constexpr int64_t kGradientBlocks = 2048;  // target: several per multiprocessor

struct Hit {
  int row;    ///< within the block's rows
  int token;  ///< within the tile
};

/// Lists the tokens of this warp's part with 0 <= row_of(token) < rows. Returns their number, to all lanes. The tile has `count` tokens.
template <class RowOf>
__device__ __forceinline__ int list_hits(RowOf&& row_of, int64_t count, int64_t rows, Hit* hits) {
  const int lane = static_cast<int>(threadIdx.x) % kWarp, part = static_cast<int>(threadIdx.x) / kWarp * kPart;
  decltype(row_of(0)) row[kScan];
#pragma unroll
  for (int s = 0; s < kScan; ++s) {
    const int token = part + s * kWarp + lane;
    row[s] = token < count ? row_of(token) : -1;
  }
  int listed = 0;
#pragma unroll
  for (int s = 0; s < kScan; ++s) {
    const bool mine = row[s] >= 0 && row[s] < rows;
    const unsigned lanes = __ballot_sync(kAllLanes, mine);
    if (mine) hits[listed + __popc(lanes & ((1U << lane) - 1))] = {static_cast<int>(row[s]), part + s * kWarp + lane};
    listed += __popc(lanes);
  }
  return listed;
}

/// dw[hit.row] += dy[hit.token] for at most kHits hits, in order. A repeated row continues from its earlier sum, which is not in memory yet.
template <class T, int N>
__device__ __forceinline__ void add_hits(const Hit* hits, int count, const T* dy, float* dw, int64_t columns) {
  Packed<T, N> gradients[kHits];
  float sums[kHits][N];
#pragma unroll
  for (int h = 0; h < kHits; ++h) {
    if (h >= count) break;
    gradients[h].load(dy + hits[h].token * columns);
    load_vector(dw + hits[h].row * columns, sums[h]);
  }
#pragma unroll
  for (int h = 0; h < kHits; ++h) {
    if (h >= count) break;
#pragma unroll
    for (int earlier = 0; earlier < h; ++earlier) {
      if (hits[earlier].row != hits[h].row) continue;
#pragma unroll
      for (int i = 0; i < N; ++i) sums[h][i] = sums[earlier][i];
    }
    float gradient[N];
    gradients[h].get(gradient);
#pragma unroll
    for (int i = 0; i < N; ++i) sums[h][i] += gradient[i];
  }
#pragma unroll
  for (int h = 0; h < kHits; ++h) {
    if (h >= count) break;
    store_vector(dw + hits[h].row * columns, sums[h]);
  }
}

template <class T, int N>
__global__ void __launch_bounds__(kBlock) embedding_backward_kernel(const int32_t* __restrict__ tokens, const T* __restrict__ dy, int64_t vocab_begin,
                                                                    int64_t vocab_rows, int64_t rows_each, float* dw, int64_t rows, int64_t columns) {
  TRIREME_SHARED(Hit[kWarps][kPart], hits);
  TRIREME_SHARED(int[kWarps], listed);
  const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
  const int64_t column = (int64_t{blockIdx.y} * kBlock + threadIdx.x) * N;
  const int64_t first = blockIdx.x * rows_each, owned = first + rows_each < vocab_rows ? rows_each : vocab_rows - first;
  for (int64_t tile = 0; tile < rows; tile += kTile) {
    const int count = list_hits([&](int token) { return tokens[tile + token] - (vocab_begin + first); }, rows - tile, owned, hits[warp]);
    if (lane == 0) listed[warp] = count;
    __syncthreads();
    if (column < columns) {
      for (int part = 0; part < kWarps; ++part) {
        for (int h = 0; h < listed[part]; h += kHits) {
          add_hits<T, N>(hits[part] + h, listed[part] - h, dy + tile * columns + column, dw + first * columns + column, columns);
        }
      }
    }
    __syncthreads();  // before the next tile overwrites the lists
  }
}

// ---- positions that restart in each document ----
// A thread owns N columns at kPositions consecutive positions and visits the rows at them, one document after another, so that it accesses its part
// of the table once. It loads that part before the first document: from code that loads a position at its first use, nvcc 13.0 removes one of the
// loads. For the documents each block lists their first rows in shared memory, one tile of rows at a time.

constexpr int kPositions = 4;  // with fewer there are more blocks, each of which loads all starts

struct DocumentRows {
  const int32_t* starts;    ///< of Documents
  uint32_t first_position;  ///< place of row 0 in its sequence
  uint32_t sequence_length;
  int64_t rows;

  /// Calls body(row, end) for each document, in order: its row at position p is row + p - `position`, of which those in [0, end) exist here. All
  /// threads of a block call it.
  template <class Body>
  __device__ __forceinline__ void for_each_document(int64_t position, Body&& body) const {
    TRIREME_SHARED(Hit[kWarps][kPart], hits);
    TRIREME_SHARED(int[kWarps], listed);
    const int lane = static_cast<int>(threadIdx.x) % kWarp, warp = static_cast<int>(threadIdx.x) / kWarp;
    int64_t first = int64_t{starts[0]} - first_position;  // of the document; negative if it begins before the rows
    for (int64_t tile = 0; tile < rows; tile += kTile) {
      const auto position_of = [&](int token) {
        return static_cast<int>(static_cast<uint32_t>(first_position + tile + token) % sequence_length) - starts[tile + token];
      };
      const int count = list_hits(position_of, rows - tile, 1, hits[warp]);
      if (lane == 0) listed[warp] = count;
      __syncthreads();
      for (int part = 0; part < kWarps; ++part) {
        for (int h = 0; h < listed[part]; ++h) {
          const int64_t next = tile + hits[part][h].token;
          body(first + position, next);
          first = next;
        }
      }
      __syncthreads();  // before the next tile overwrites the lists
    }
    body(first + position, rows);
  }
};

template <class T, int N>
__global__ void __launch_bounds__(kBlock)
    document_position_forward_kernel(const T* __restrict__ w, DocumentRows documents, T* __restrict__ y, uint32_t row_accesses, int64_t columns) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  const int64_t position = int64_t{access / row_accesses} * kPositions, column = int64_t{access % row_accesses} * N;
  Packed<T, N> added[kPositions];
#pragma unroll
  for (int i = 0; i < kPositions; ++i) {
    if (position + i < documents.sequence_length) added[i].load(w + (position + i) * columns + column);
  }
  documents.for_each_document(position, [&](int64_t row, int64_t end) {
    Packed<T, N> values[kPositions];
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      if (row + i >= 0 && row + i < end) values[i].load(y + (row + i) * columns + column);
    }
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      if (row + i < 0 || row + i >= end) continue;
      float sum[N], term[N];
      values[i].get(sum);
      added[i].get(term);
#pragma unroll
      for (int n = 0; n < N; ++n) sum[n] += term[n];
      store_vector(y + (row + i) * columns + column, sum);
    }
  });
}

template <class T, int N>
__global__ void __launch_bounds__(kBlock) document_position_backward_kernel(const T* __restrict__ dy, DocumentRows documents, float* __restrict__ dw,
                                                                            uint32_t row_accesses, int64_t columns) {
  const uint32_t access = blockIdx.x * kBlock + threadIdx.x;
  const int64_t position = int64_t{access / row_accesses} * kPositions, column = int64_t{access % row_accesses} * N;
  float sums[kPositions][N];
#pragma unroll
  for (int i = 0; i < kPositions; ++i) {
    if (position + i < documents.sequence_length) load_vector(dw + (position + i) * columns + column, sums[i]);
  }
  documents.for_each_document(position, [&](int64_t row, int64_t end) {
#pragma unroll
    for (int i = 0; i < kPositions; ++i) {
      if (row + i < 0 || row + i >= end) continue;
      float gradient[N];
      load_vector(dy + (row + i) * columns + column, gradient);
#pragma unroll
      for (int n = 0; n < N; ++n) sums[i][n] += gradient[n];
    }
  });
#pragma unroll
  for (int i = 0; i < kPositions; ++i) {
    if (position + i < documents.sequence_length) store_vector(dw + (position + i) * columns + column, sums[i]);
  }
}

unsigned blocks_of(int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kBlock)); }

/// Grid of the kernels of DocumentRows.
Shape3 document_positions(int64_t sequence_length, int64_t row_accesses) {
  const int64_t threads = ceil_div(sequence_length, kPositions) * row_accesses;
  TRIREME_CHECK(threads <= INT32_MAX, sequence_length, " positions of ", row_accesses, " accesses are too many");
  return {dim3(blocks_of(threads)), dim3(kBlock)};
}
DocumentRows document_rows(const int32_t* starts, int64_t first_row, int64_t sequence_length, int64_t rows) {
  TRIREME_CHECK(rows + sequence_length <= UINT32_MAX, rows, " rows in sequences of ", sequence_length, " are too many");
  return {starts, static_cast<uint32_t>(first_row % sequence_length), static_cast<uint32_t>(sequence_length), rows};
}

}  // namespace

void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  dispatch_gpu_float(y.dtype(), [&]<class T>(T) {
    const int32_t* const ids = tokens.data<int32_t>();
    const T* const table = w.data<T>();
    T* const out = y.data<T>();
    const bool aligned = aligned_rows(columns, table, out);
    const int64_t row_accesses = aligned ? columns / kVector<T> : columns;
    const auto kernel = aligned ? embedding_forward_kernel<T, kVector<T>> : embedding_forward_kernel<T, 1>;
    for_row_ranges(rows, row_accesses, [&](int64_t first, int64_t count) {
      launch(ctx, kernel, {dim3(blocks_of(count * row_accesses)), dim3(kBlock)}, ids + first, table, vocab_begin, vocab_rows, out + first * columns,
             count * row_accesses, row_accesses, columns);
    });
  });
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  if (rows == 0 || columns == 0 || vocab_rows == 0) return;
  dispatch_gpu_float(dy.dtype(), [&]<class T>(T) {
    constexpr int kColumns = 4;  // per thread: more would need too many registers with kHits rows in flight
    const T* const gradients = dy.data<T>();
    float* const sums = dw.data<float>();
    const bool aligned = aligned_16(gradients, sums) && columns % kColumns == 0;
    const int64_t slices = ceil_div(columns, kBlock * (aligned ? kColumns : 1));
    const int64_t rows_each = ceil_div(vocab_rows, std::min(vocab_rows, ceil_div(kGradientBlocks, slices)));
    const auto kernel = aligned ? embedding_backward_kernel<T, kColumns> : embedding_backward_kernel<T, 1>;
    launch(ctx, kernel, {dim3(static_cast<unsigned>(ceil_div(vocab_rows, rows_each)), static_cast<unsigned>(slices)), dim3(kBlock)},
           tokens.data<int32_t>(), gradients, vocab_begin, vocab_rows, rows_each, sums, rows, columns);
  });
}

void position_forward(Context& ctx, const Tensor& w, int64_t first_row, int64_t sequence_length, const int32_t* starts, const Tensor& y) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  TRIREME_CHECK(sequence_length <= UINT32_MAX, sequence_length, " positions are too many");
  dispatch_gpu_float(y.dtype(), [&]<class T>(T) {
    const T* const table = w.data<T>();
    T* const out = y.data<T>();
    const bool aligned = aligned_rows(columns, table, out);
    const int64_t row_accesses = aligned ? columns / kVector<T> : columns;
    if (starts != nullptr) {
      if (y.numel() == 0) return;
      const auto kernel = aligned ? document_position_forward_kernel<T, kVector<T>> : document_position_forward_kernel<T, 1>;
      return launch(ctx, kernel, document_positions(sequence_length, row_accesses), table, document_rows(starts, first_row, sequence_length, rows),
                    out, row_accesses, columns);
    }
    const auto kernel = aligned ? position_forward_kernel<T, kVector<T>> : position_forward_kernel<T, 1>;
    for_row_ranges(rows, row_accesses, [&](int64_t first, int64_t count) {
      launch(ctx, kernel, {dim3(blocks_of(count * row_accesses)), dim3(kBlock)}, table, (first_row + first) % sequence_length, sequence_length,
             out + first * columns, count * row_accesses, row_accesses, columns);
    });
  });
}

void position_backward(Context& ctx, const Tensor& dy, int64_t first_row, int64_t sequence_length, const int32_t* starts, const Tensor& dw) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  dispatch_gpu_float(dy.dtype(), [&]<class T>(T) {
    constexpr int kColumns = 4;  // per thread: the lanes of a warp then access consecutive 16 bytes of the fp32 gradient
    const T* const gradients = dy.data<T>();
    float* const sums = dw.data<float>();
    const bool aligned = aligned_16(gradients, sums) && columns % kColumns == 0;
    const int64_t row_accesses = aligned ? columns / kColumns : columns;
    if (starts != nullptr) {
      if (dy.numel() == 0) return;
      const auto kernel = aligned ? document_position_backward_kernel<T, kColumns> : document_position_backward_kernel<T, 1>;
      return launch(ctx, kernel, document_positions(sequence_length, row_accesses), gradients,
                    document_rows(starts, first_row, sequence_length, rows), sums, row_accesses, columns);
    }
    TRIREME_CHECK(sequence_length * row_accesses <= UINT32_MAX, sequence_length, " positions of ", columns, " columns are too many");
    const auto kernel = aligned ? position_backward_kernel<T, kColumns> : position_backward_kernel<T, 1>;
    launch(ctx, kernel, {dim3(blocks_of(sequence_length * row_accesses)), dim3(kBlock)}, gradients, first_row % sequence_length, sequence_length,
           sums, rows, sequence_length * row_accesses, row_accesses, columns);
  });
}

}  // namespace trireme::cuda
