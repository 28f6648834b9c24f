#pragma once
// Simulation of the AMX instructions of kernels/cpu/isa/tiles.h in plain C++, according to the Intel SDM: LDTILECFG, TILEZERO, TILELOADD, TILESTORED,
// TDPBF16PS and TILERELEASE. Conditions for which a processor raises an exception are counted, because kernels cannot report them.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/cpu/isa/tiles.h"

namespace trireme::testing {

class TileMachine {
 public:
  static constexpr int kTiles = 8, kMaxRows = 16, kMaxBytes = 64;

  void configure(const void* memory) {
    std::array<uint8_t, 64> bytes;
    std::memcpy(bytes.data(), memory, bytes.size());
    // Bytes: 0 palette, 1 start row, 2 to 15 reserved, 16 to 47 row bytes (two each), 48 to 63 rows.
    bool valid = bytes[0] == 1 && bytes[1] == 0 && std::all_of(&bytes[2], &bytes[16], [](uint8_t byte) { return byte == 0; });
    for (int tile = 0; tile < 16; ++tile) {
      const int row_bytes = bytes[16 + 2 * tile] | bytes[17 + 2 * tile] << 8, rows = bytes[48 + tile];
      valid &= tile < kTiles ? row_bytes <= kMaxBytes && rows <= kMaxRows && (rows == 0) == (row_bytes == 0) : row_bytes == 0 && rows == 0;
      if (tile < kTiles) tiles_[tile] = {rows, row_bytes, {}};
    }
    fault(!valid);
    configured_ = valid;
  }
  void release() {
    configured_ = false;
    tiles_ = {};
  }
  bool configured() const { return configured_; }

  void zero(int tile) {
    if (usable(tile)) std::memset(tiles_[tile].bytes, 0, sizeof(tiles_[tile].bytes));
  }
  void load(int tile, const void* from, int64_t stride_bytes) {
    if (!usable(tile)) return;
    std::memset(tiles_[tile].bytes, 0, sizeof(tiles_[tile].bytes));
    for (int r = 0; r < tiles_[tile].rows; ++r)
      std::memcpy(tiles_[tile].bytes[r], static_cast<const char*>(from) + r * stride_bytes, tiles_[tile].row_bytes);
  }
  void store(int tile, void* to, int64_t stride_bytes) {
    if (!usable(tile)) return;
    for (int r = 0; r < tiles_[tile].rows; ++r) std::memcpy(static_cast<char*>(to) + r * stride_bytes, tiles_[tile].bytes[r], tiles_[tile].row_bytes);
  }
  /// TDPBF16PS: row m of `a` has pairs of bf16 along k, row k of `b` the pairs of each column n. The even and the odd products of the pairs are
  /// summed separately, by fused multiply-adds that flush subnormal inputs and results to zero, and added at the end.
  void dot(int sums, int a, int b) {
    if (!usable(sums) || !usable(a) || !usable(b)) return;
    Tile &c = tiles_[sums], &left = tiles_[a], &right = tiles_[b];
    fault(sums == a || sums == b || a == b || left.rows != c.rows || right.row_bytes != c.row_bytes || right.rows != left.row_bytes / 4);
    for (int m = 0; m < c.rows; ++m) {
      for (int n = 0; n < c.row_bytes / 4; ++n) {
        float even = 0, odd = 0;
        for (int k = 0; k < left.row_bytes / 4; ++k) {
          even = flushed(std::fma(left.bf16(m, 2 * k), right.bf16(k, 2 * n), even));
          odd = flushed(std::fma(left.bf16(m, 2 * k + 1), right.bf16(k, 2 * n + 1), odd));
        }
        float sum;
        std::memcpy(&sum, c.bytes[m] + 4 * n, 4);
        sum = flushed(flushed(sum) + flushed(even + odd));
        std::memcpy(c.bytes[m] + 4 * n, &sum, 4);
      }
    }
  }

  static inline std::atomic<int> faults = 0;  ///< summed over all threads
  static inline std::atomic<int64_t> dots = 0;

 private:
  struct Tile {
    int rows = 0, row_bytes = 0;
    unsigned char bytes[kMaxRows][kMaxBytes] = {};
    float bf16(int row, int i) const {
      uint16_t bits;
      std::memcpy(&bits, bytes[row] + 2 * i, 2);
      return flushed(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
    }
  };
  static float flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0F, x) : x; }
  static void fault(bool condition) { faults += condition ? 1 : 0; }
  bool usable(int tile) {
    const bool fine = configured_ && tile < kTiles && tiles_[tile].rows > 0;
    fault(!fine);
    return fine;
  }

  bool configured_ = false;
  std::array<Tile, kTiles> tiles_;
};

inline TileMachine& tile_machine() {
  thread_local TileMachine machine;
  return machine;
}

/// Replaces AmxTiles.
struct SimulatedTiles {
  static void configure() {
    const cpu::TRIREME_ISA::TileConfiguration all;
    tile_machine().configure(&all);
  }
  static void release() { tile_machine().release(); }
  template <int kTile>
  static void zero() {
    tile_machine().zero(kTile);
  }
  template <int kTile, class Word>
  static void load(const Word* from, int64_t stride) {
    tile_machine().load(kTile, from, stride * 4);
  }
  template <int kTile>
  static void store(float* to, int64_t stride) {
    tile_machine().store(kTile, to, stride * 4);
  }
  template <int kSums, int kA, int kB>
  static void dot() {
    ++TileMachine::dots;
    tile_machine().dot(kSums, kA, kB);
  }
};

}  // namespace trireme::testing
