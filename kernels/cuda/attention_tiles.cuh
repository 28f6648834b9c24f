#pragma once
// Shared-memory tiles of rows of H 16-bit elements (T: bfloat16 or float16), and their products on tensor cores.
//
// The 16-byte chunks of a row are permuted (XOR with bits of the row number) so that eight rows at one column lie in eight different bank groups:
// neither asynchronous copies nor ldmatrix have bank conflicts.
#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vector.cuh"

namespace trireme::cuda {

template <int H>
struct Tile {
  static constexpr int kRowBytes = 2 * H;
  static constexpr int kChunks = H / 8;        ///< 16-byte chunks per row
  static constexpr bool kWhole = H % 64 == 0;  ///< rows consist of whole 128-byte lines; otherwise a line contains parts of two rows

  __device__ static int offset(int row, int chunk) { return row * kRowBytes + ((chunk ^ (kWhole ? row & 7 : row >> 1 & 3)) << 4); }
  /// Offset that `lane` passes to ldmatrix for the 16 x 16 block at row 0, column 0. down_then_right gives the four 8 x 8 matrices in the order of
  /// operand A, which transposed is the order of operands B of two neighbouring n-tiles. right_then_down gives operands B of two n-tiles, not
  /// transposed. An operand of an mma must be in consecutive registers, so any other order costs moves.
  __device__ static int down_then_right(int lane) { return offset(lane % 16, lane / 16); }
  __device__ static int right_then_down(int lane) { return offset(lane % 8 + lane / 16 * 8, lane / 8 % 2); }
  /// The same in the block at row 0, column 16 * step: the swizzle turns part of the step into an XOR.
  __device__ static int at_column(int lane_offset, int step) {
    constexpr int kXor = kWhole ? 127 : 63;
    return (step * 32 & ~kXor) + (lane_offset ^ (step * 32 & kXor));
  }
  /// The lane's address in the block at `row` (a multiple of 16) and column 16 * step.
  __device__ static const unsigned char* block(const unsigned char* tile, int lane_offset, int row, int step) {
    return tile + row * kRowBytes + at_column(lane_offset, step);
  }
};

/// One thread's share when all kThreads threads of a block copy tiles of consecutive rows of global memory.
template <class T, int H, int kThreads>
struct TileLoader {
  static constexpr int kChunks = Tile<H>::kChunks;
  static constexpr int kPass = kThreads / kChunks / 8 * 8;  ///< rows at a time; a multiple of 8, so that a thread's swizzle does not change

  /// The first element that this thread, of number `thread`, copies of the rows from `from` on.
  __device__ static const T* begin(const T* from, int64_t stride, int thread = static_cast<int>(threadIdx.x)) {
    return from + thread / kChunks * stride + thread % kChunks * 8;
  }

  /// Starts this thread's copies of kRows rows, with zeros from row `rows` on. `from` is the result of begin().
  template <int kRows>
  __device__ static void load(unsigned char* tile, const T* from, int64_t stride, int rows, int thread = static_cast<int>(threadIdx.x)) {
    static_assert(kPass > 0 && kRows % kPass == 0);
    const int row = thread / kChunks;
    if (kPass * kChunks < kThreads && row >= kPass) return;
    tile += Tile<H>::offset(row, thread % kChunks);
    rows -= row;
#pragma unroll(kRows / kPass <= 4 ? 4 : 2)
    for (int first = 0; first < kRows; first += kPass) {
      cp_async_16(tile, from, first < rows);
      tile += kPass * Tile<H>::kRowBytes;
      from += kPass * stride;
    }
  }
};

/// Accumulators of a warp: kM tiles of 16 rows by kN tiles of 8 columns. In each tile a lane holds rows lane / 4 (elements 0, 1) and lane / 4 + 8
/// (elements 2, 3), columns 2 * (lane % 4) and the next.
template <int kM, int kN>
using Fragments = float[kM][kN][4];

template <int kM, int kN>
__device__ inline void clear(Fragments<kM, kN>& d) {
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int n = 0; n < kN; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) d[m][n][i] = 0;
}

/// sums [16 kM, 8 kN] += a b over 16 kSteps columns of a. load_a(block, m, step) and load_b(block, n, step) give the operand A of row tile m and the
/// operands B of the n-tiles n and n + 1 in that step.
template <class T, int kSteps, int kM, int kN, class LoadA, class LoadB>
__device__ inline void add_products(Fragments<kM, kN>& sums, LoadA&& load_a, LoadB&& load_b) {
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    uint32_t a_block[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_a(a_block[m], m, step);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t b_block[4];
      load_b(b_block, n, step);
      const uint32_t left[2] = {b_block[0], b_block[1]}, right[2] = {b_block[2], b_block[3]};
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16<T>(sums[m][n], a_block[m], left);
        mma_m16n8k16<T>(sums[m][n + 1], a_block[m], right);
      }
    }
  }
}

/// d [16 kM, 8 kN] = a b^T over H columns; a and b are rows of tiles.
template <class T, int H, int kM, int kN>
__device__ inline void multiply_rows(Fragments<kM, kN>& d, const unsigned char* a, const unsigned char* b,
                                     int lane = static_cast<int>(threadIdx.x) % kWarp) {
  const int a_offset = Tile<H>::down_then_right(lane), b_offset = Tile<H>::right_then_down(lane);
  clear<kM, kN>(d);
  add_products<T, H / 16, kM, kN>(
      d, [&](uint32_t(&block)[4], int m, int step) { ldmatrix_x4(block, Tile<H>::block(a, a_offset, 16 * m, step)); },
      [&](uint32_t(&block)[4], int n, int step) { ldmatrix_x4(block, Tile<H>::block(b, b_offset, 8 * n, step)); });
}

/// sums [16 kM, H] += p b: p [16 kM, 8 kN] is in registers and rounded to T; b is 8 kN rows of a tile.
template <class T, int H, int kM, int kN>
__device__ inline void add_product(Fragments<kM, H / 8>& sums, const Fragments<kM, kN>& p, const unsigned char* b) {
  const int b_offset = Tile<H>::down_then_right(static_cast<int>(threadIdx.x) % kWarp);
  add_products<T, kN / 2, kM, H / 8>(
      sums,
      [&](uint32_t(&block)[4], int m, int step) {
        // Accumulators have the layout of an A operand: two n-tiles are its columns 0..7 and 8..15.
        const int k = 2 * step;
        block[0] = pack_pair<T>(p[m][k][0], p[m][k][1]);
        block[1] = pack_pair<T>(p[m][k][2], p[m][k][3]);
        block[2] = pack_pair<T>(p[m][k + 1][0], p[m][k + 1][1]);
        block[3] = pack_pair<T>(p[m][k + 1][2], p[m][k + 1][3]);
      },
      [&](uint32_t(&block)[4], int n, int step) { ldmatrix_x4_trans(block, Tile<H>::block(b, b_offset, 16 * step, n / 2)); });
}

/// Scales a warp's fragments by factor(m, half) of their rows, rounds them to T and puts them into 16 kM rows of a tile. Two neighbouring n-tiles are a
/// block of 16 columns; the blocks begin at column 16 * first and are kEvery blocks apart.
template <class T, int H, int kM, int kN, int kEvery, class Factor>
__device__ inline void put_rows(unsigned char* rows, const Fragments<kM, kN>& from, int first, Factor&& factor) {
  const int lane = reread_thread() % kWarp, lane_offset = Tile<H>::at_column(Tile<H>::offset(lane / 4, 0) + lane % 4 * 4, first);
#pragma unroll
  for (int m = 0; m < kM; ++m)
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float by = factor(m, half);
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        unsigned char* const pair = rows + (16 * m + 8 * half) * Tile<H>::kRowBytes + (Tile<H>::at_column(lane_offset, n / 2 * kEvery) ^ n % 2 * 16);
        *reinterpret_cast<uint32_t*>(pair) = pack_pair<T>(from[m][n][2 * half] * by, from[m][n][2 * half + 1] * by);
      }
    }
}

/// kThreads threads, of which this is number `thread`, store kRows rows of a tile to rows of `to`, of which the first `rows` exist.
template <int H, int kRows, int kThreads, class T>
__device__ inline void store_tile(int thread, const unsigned char* tile, T* to, int64_t stride, int rows) {
  constexpr int kChunks = Tile<H>::kChunks;
#pragma unroll 1
  for (int index = thread; index < kRows * kChunks; index += kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    if (row < rows) store_words(to + row * stride + chunk * 8, load_words<uint4>(tile + Tile<H>::offset(row, chunk)));
  }
}

/// Scales a warp's sums by factor(m, half) of their rows, rounds them to T and stores them to rows of `to`, of which the first `rows` exist. They are
/// staged in `tile`, 16 kM rows of shared memory that only this warp uses.
template <int H, int kM, class T, class Factor>
__device__ inline void store_rows(const Fragments<kM, H / 8>& sums, Factor factor, unsigned char* tile, T* to, int64_t stride, int rows) {
  __syncwarp();  // other lanes have read these rows by ldmatrix; neither it nor mma orders memory
  put_rows<T, H, kM, H / 8, 1>(tile, sums, 0, factor);
  __syncwarp();
  store_tile<H, 16 * kM, kWarp>(static_cast<int>(threadIdx.x) % kWarp, tile, to, stride, rows);
}

}  // namespace trireme::cuda
