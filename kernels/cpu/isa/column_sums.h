#pragma once
#include <cstdint>

namespace trireme::cpu::TRIREME_ISA {
namespace {

/// out[c] += sum over rows of term(row, c) for columns [begin, end): the gradient of weights that all rows share. A column is summed in fp32 within
/// blocks of 64 rows, and then over the blocks, which keeps the rounding error near 64 + rows/64 ulp instead of `rows` ulp.
template <class Term>
inline void add_column_sums(int64_t rows, int64_t begin, int64_t end, float* out, const Term& term) {
  constexpr int64_t kTile = 256;  // columns: runs of a row long enough for the prefetcher, sums in L1
  constexpr int64_t kRowBlock = 64;
  for (int64_t first = begin; first < end; first += kTile) {
    const int64_t width = end - first < kTile ? end - first : kTile;
    float total[kTile] = {};
    for (int64_t block = 0; block < rows; block += kRowBlock) {
      const int64_t last = rows - block < kRowBlock ? rows : block + kRowBlock;
      float partial[kTile] = {};
      for (int64_t row = block; row < last; ++row) {
#pragma omp simd
        for (int64_t c = 0; c < width; ++c) partial[c] += term(row, first + c);
      }
#pragma omp simd
      for (int64_t c = 0; c < width; ++c) total[c] += partial[c];
    }
    for (int64_t c = 0; c < width; ++c) out[first + c] += total[c];
  }
}

}  // namespace
}  // namespace trireme::cpu::TRIREME_ISA
