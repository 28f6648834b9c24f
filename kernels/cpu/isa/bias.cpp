#include "kernels/cpu/isa/column_sums.h"
#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {

template <class T>
void bias_forward(const BiasForward<T>& p, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) add_range(p.y + m * p.columns, p.bias, p.columns, p.y + m * p.columns);
}

template <class T>
void bias_backward(const BiasBackward<T>& p, int64_t begin, int64_t end) {
  const T* const dy = p.dy;
  const int64_t columns = p.columns;
  add_column_sums(p.rows, begin, end, p.dbias, [=](int64_t m, int64_t c) { return static_cast<float>(dy[m * columns + c]); });
}

TRIREME_INSTANCES(bias_forward, BiasForward);
TRIREME_INSTANCES(bias_backward, BiasBackward);

}  // namespace trireme::cpu::TRIREME_ISA
