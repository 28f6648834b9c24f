#pragma once
// Matrix products of attention blocks, c [m,n] = a [m,k] b [k,n] in fp32, on packed operands. A word has 4 bytes: one element in fp32, or two bf16
// elements that are adjacent along k, as the bf16 instructions require. a [m][k words] and b [k words][n] are row-major at strides in words
// (c: in floats); m and n are multiples of 16, and rows begin on multiples of 64 bytes.
//
// An engine defines: Element, kDepth (elements per word), Word, kUnit (every extent of a product is a multiple of it, in elements), product(), and
// Session, a scope guard for the time in which a thread uses the engine.
#include "kernels/core/bfloat16.h"
#include "kernels/cpu/isa/vectors.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

typedef uint32_t PairWord __attribute__((may_alias));  ///< bf16 of k in the low half, of k + 1 in the high half

template <class Engine, int kRows, int kVectors>
inline void vector_tile(int64_t k, const typename Engine::Word* a, int64_t a_stride, const typename Engine::Word* b, int64_t b_stride, float* c,
                        int64_t c_stride, bool accumulate) {
  Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) sums[r][v] = accumulate ? load(c + r * c_stride + v * kLanes) : Vector{};
  }
  for (int64_t p = 0; p < k; ++p) {
    Vector columns[kVectors];
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) columns[v] = load(b + p * b_stride + v * kLanes);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) sums[r][v] = Engine::multiply_add(a[r * a_stride + p], columns[v], sums[r][v]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) store(c + r * c_stride + v * kLanes, sums[r][v]);
  }
}

/// One panel of columns of b, which stays in L1 during the loop over the rows of a.
template <class Engine, int kRows, int kVectors>
void vector_panel(int64_t m, int64_t k, const typename Engine::Word* a, int64_t a_stride, const typename Engine::Word* b, int64_t b_stride, float* c,
                  int64_t c_stride, bool accumulate) {
  for (int64_t i = 0; i < m; i += kRows)
    vector_tile<Engine, kRows, kVectors>(k, a + i * a_stride, a_stride, b, b_stride, c + i * c_stride, c_stride, accumulate);
}

template <class Engine>
void vector_product(int64_t m, int64_t n, int64_t k, const typename Engine::Word* a, int64_t a_stride, const typename Engine::Word* b,
                    int64_t b_stride, float* c, int64_t c_stride, bool accumulate) {
  int64_t j = 0;
  const auto panels = [&]<int kRows, int kVectors>() {  // rows x vectors: enough sums to hide the latency of an addition, few enough for registers
    for (; j + kVectors * kLanes <= n; j += kVectors * kLanes)
      vector_panel<Engine, kRows, kVectors>(m, k, a, a_stride, b + j, b_stride, c + j, c_stride, accumulate);
  };
  if constexpr (kLanes == 16) {
    panels.template operator()<4, 4>();
    panels.template operator()<8, 2>();
    panels.template operator()<8, 1>();
  } else {
    panels.template operator()<4, 2>();
  }
}

/// fp32; also used for fp16, and for bf16 on levels without bf16 instructions.
struct Fp32Engine {
  using Element = float;
  using Word = float;
  static constexpr int64_t kDepth = 1;
  static constexpr int64_t kUnit = 16;
  struct Session {};
  static Vector multiply_add(float a, Vector b, Vector c) { return a * b + c; }
  static void product(int64_t m, int64_t n, int64_t k, const Word* a, int64_t a_stride, const Word* b, int64_t b_stride, float* c, int64_t c_stride,
                      bool accumulate) {
    vector_product<Fp32Engine>(m, n, k, a, a_stride, b, b_stride, c, c_stride, accumulate);
  }
};

#ifdef __AVX512BF16__
/// Dot products of bf16 pairs, summed in fp32.
struct Bf16DotEngine {
  using Element = bfloat16;
  using Word = PairWord;
  static constexpr int64_t kDepth = 2;
  static constexpr int64_t kUnit = 32;
  struct Session {};
  static Vector multiply_add(Word a, Vector b, Vector c) {
    return _mm512_dpbf16_ps(c, reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(a))), reinterpret_cast<__m512bh>(b));
  }
  static void product(int64_t m, int64_t n, int64_t k, const Word* a, int64_t a_stride, const Word* b, int64_t b_stride, float* c, int64_t c_stride,
                      bool accumulate) {
    vector_product<Bf16DotEngine>(m, n, k, a, a_stride, b, b_stride, c, c_stride, accumulate);
  }
};
#endif

/// Dot products of bf16 pairs on AMX tiles of 16 rows of 64 bytes; m, n and k in elements are multiples of 32. `Tiles` are the instructions (tiles.h)
/// or a simulation of them.
template <class Tiles>
struct AmxEngine {
  using Element = bfloat16;
  using Word = PairWord;
  static constexpr int64_t kDepth = 2;
  static constexpr int64_t kUnit = 32;
  /// The tile configuration belongs to the thread, and other users (oneDNN) set their own: it is set before use and released after.
  struct Session {
    Session() { Tiles::configure(); }
    ~Session() { Tiles::release(); }
    Session(const Session&) = delete;
    Session& operator=(const Session&) = delete;
  };
  /// 2 x 2 tiles of sums (0 to 3) use each tile of a (4, 5) and b (6, 7) twice: one load per tile product.
  static void product(int64_t m, int64_t n, int64_t k, const Word* a, int64_t a_stride, const Word* b, int64_t b_stride, float* c, int64_t c_stride,
                      bool accumulate) {
    constexpr int64_t kSide = 16;
    for (int64_t j = 0; j < n; j += 2 * kSide) {
      for (int64_t i = 0; i < m; i += 2 * kSide) {
        float* const upper = c + i * c_stride + j;
        float* const lower = upper + kSide * c_stride;
        if (accumulate) {
          Tiles::template load<0>(upper, c_stride);
          Tiles::template load<1>(upper + kSide, c_stride);
          Tiles::template load<2>(lower, c_stride);
          Tiles::template load<3>(lower + kSide, c_stride);
        } else {
          Tiles::template zero<0>();
          Tiles::template zero<1>();
          Tiles::template zero<2>();
          Tiles::template zero<3>();
        }
        for (int64_t p = 0; p < k; p += kSide) {
          Tiles::template load<4>(a + i * a_stride + p, a_stride);
          Tiles::template load<6>(b + p * b_stride + j, b_stride);
          Tiles::template load<7>(b + p * b_stride + j + kSide, b_stride);
          Tiles::template load<5>(a + (i + kSide) * a_stride + p, a_stride);
          Tiles::template dot<0, 4, 6>();
          Tiles::template dot<1, 4, 7>();
          Tiles::template dot<2, 5, 6>();
          Tiles::template dot<3, 5, 7>();
        }
        Tiles::template store<0>(upper, c_stride);
        Tiles::template store<1>(upper + kSide, c_stride);
        Tiles::template store<2>(lower, c_stride);
        Tiles::template store<3>(lower + kSide, c_stride);
      }
    }
  }
};

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
