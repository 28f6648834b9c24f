#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class T>
void add_columns(const T* from, int64_t columns, float* to) {
#pragma omp simd
  for (int64_t d = 0; d < columns; ++d) to[d] += static_cast<float>(from[d]);
}

}  // namespace

template <class T>
void embedding_backward(const EmbeddingBackward<T>& p, int64_t begin, int64_t end) {
  for (int64_t m = 0; m < p.rows; ++m) {
    const int64_t row = p.tokens[m] - p.vocab_begin;
    if (row >= 0 && row < p.vocab_rows) add_columns(p.dy + m * p.columns + begin, end - begin, p.dw + row * p.columns + begin);
  }
}

TRIREME_INSTANCES(embedding_backward, EmbeddingBackward);

}  // namespace trireme::cpu::TRIREME_ISA
