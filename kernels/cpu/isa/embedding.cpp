#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {

template <class T>
void embedding_backward(const EmbeddingBackward<T>& p, int64_t begin, int64_t end) {
  for (int64_t m = 0; m < p.rows; ++m) {
    const int64_t row = p.tokens[m] - p.vocab_begin;
    if (row < 0 || row >= p.vocab_rows) continue;
    float* const to = p.dw + row * p.columns + begin;
    add_range(to, p.dy + m * p.columns + begin, end - begin, to);
  }
}

TRIREME_INSTANCES(embedding_backward, EmbeddingBackward);

}  // namespace trireme::cpu::TRIREME_ISA
