#pragma once
// Tiles of attention for products of warpgroups: rows of H 16-bit elements (T: bfloat16 or float16) as H / 64 panels side by side
// (kernels/cuda/warpgroup.cuh), each panel of all rows of the tile.
#include "kernels/cuda/attention_tiles.cuh"
#include "kernels/cuda/warpgroup.cuh"

namespace trireme::cuda {

constexpr int kWarpgroup = 128;
constexpr int kGroupRows = 64;  ///< rows of a warpgroup's products

/// The warpgroup of a thread. By the shuffle the compiler knows that it is the same for a warp, and keeps what depends on it in uniform registers.
__device__ inline int warpgroup_of(int thread) { return __shfl_sync(~0u, thread / kWarpgroup, 0); }

/// A tile of kRows rows.
template <int H, int kRows>
struct Panels {
  static_assert(H % kPanelColumns == 0 && kRows % 8 == 0);
  static constexpr int kPanelBytes = kRows * kPanelRowBytes;
  static constexpr int kBytes = H / kPanelColumns * kPanelBytes;

  /// Offset of 8 elements, from column 8 * chunk on.
  __device__ static int offset(int row, int chunk) { return chunk / 8 * kPanelBytes + panel_offset(row, chunk % 8); }
  /// Operand of the rows from `row`, a multiple of 8, in step `step` of 16 columns, which are steps along k.
  __device__ static uint64_t along_columns(uint32_t tile, int row, int step) {
    return wgmma_operand(tile + row * kPanelRowBytes) + (step / 4 * kPanelBytes + step % 4 * 32) / 16;
  }
  /// Transposed operand of the columns from 64 * panel on, in step `step` of 16 rows, which are steps along k.
  __device__ static uint64_t along_rows(uint32_t tile, int panel, int step) {
    return wgmma_operand(tile + panel * kPanelBytes, kPanelBytes) + step * 16 * kPanelRowBytes / 16;
  }
};

/// kThreads threads, of which this is number `thread`, start their copies of a tile of kRows rows of global memory, with zeros from row `rows` on.
template <int H, int kRows, int kThreads, class T>
__device__ inline void load_panels(unsigned char* tile, const T* from, int64_t stride, int rows, int thread) {
  constexpr int kChunks = H / 8, kPass = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kRows % kPass == 0);
  const int row = thread / kChunks, chunk = thread % kChunks;
  from += row * stride + chunk * 8;
#pragma unroll 8
  for (int first = 0; first < kRows; first += kPass) {
    cp_async_16(tile + Panels<H, kRows>::offset(first + row, chunk), from, first + row < rows);
    from += kPass * stride;
  }
}

/// Scales a warpgroup's fragments [64, H] by factor(half) of their rows, rounds them to T and puts them into the tile's rows from `row` on.
template <class T, int H, int kRows, class Factor>
__device__ inline void put_panels(unsigned char* tile, int row, const float (&from)[H / 8][4], int thread, Factor&& factor) {
  const int lane = thread % kWarp, to = row + thread % kWarpgroup / kWarp * 16 + lane / 4;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float by = factor(half);
#pragma unroll
    for (int n = 0; n < H / 8; ++n)
      *reinterpret_cast<uint32_t*>(tile + Panels<H, kRows>::offset(to + 8 * half, n) + lane % 4 * 4) =
          pack_pair<T>(from[n][2 * half] * by, from[n][2 * half + 1] * by);
  }
}

/// kThreads threads, of which this is number `thread`, store a tile of kRows rows to rows of `to`, of which the first `rows` exist.
template <int H, int kRows, int kThreads, class T>
__device__ inline void store_panels(int thread, const unsigned char* tile, T* to, int64_t stride, int rows) {
  constexpr int kChunks = H / 8;
#pragma unroll 1
  for (int index = thread; index < kRows * kChunks; index += kThreads) {
    const int row = index / kChunks, chunk = index % kChunks;
    if (row < rows) store_words(to + row * stride + chunk * 8, load_words<uint4>(tile + Panels<H, kRows>::offset(row, chunk)));
  }
}

/// Fragments [64, 8 kN] of a warpgroup, rounded to T, as operands A of kN / 2 steps of 16 columns.
template <class T, int kN>
__device__ inline void pack_operands(uint32_t (&to)[kN / 2][4], const float (&from)[kN][4]) {
#pragma unroll
  for (int step = 0; step < kN / 2; ++step) {
    to[step][0] = pack_pair<T>(from[2 * step][0], from[2 * step][1]);
    to[step][1] = pack_pair<T>(from[2 * step][2], from[2 * step][3]);
    to[step][2] = pack_pair<T>(from[2 * step + 1][0], from[2 * step + 1][1]);
    to[step][3] = pack_pair<T>(from[2 * step + 1][2], from[2 * step + 1][3]);
  }
}

}  // namespace trireme::cuda
