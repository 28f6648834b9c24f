#pragma once
// AMX tiles (Intel SDM, volume 1, chapter 18): eight registers of up to 16 rows of 64 bytes. Inline assembly, because GCC's intrinsics take tile
// numbers only as literals and do not declare that they read memory.
#include <cstdint>

namespace trireme::cpu::TRIREME_ISA {
namespace {

/// Operand of LDTILECFG.
struct alignas(64) TileConfiguration {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfiguration) == 64);

/// Strides are in words of 4 bytes.
struct AmxTiles {
  static void configure() {
    const TileConfiguration all;
    asm volatile("ldtilecfg %0" : : "m"(all));
  }
  static void release() { asm volatile("tilerelease"); }
  template <int kTile>
  static void zero() {
    asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
  }
  template <int kTile, class Word>
  static void load(const Word* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride * 4), "i"(kTile) : "memory");
  }
  template <int kTile>
  static void store(float* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride * 4), "i"(kTile) : "memory");
  }
  /// sums [16, 16] += a [16, 16 pairs] b [16 pairs, 16]
  template <int kSums, int kA, int kB>
  static void dot() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
  }
};

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
