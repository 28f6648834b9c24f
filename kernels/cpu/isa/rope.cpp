#include "kernels/cpu/isa/loops.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class T>
void rotate_head(const float* cosine, const float* sine, float direction, int64_t half, T* low, T* high) {
#pragma omp simd
  for (int64_t i = 0; i < half; ++i) {
    const float a = static_cast<float>(low[i]);
    const float b = static_cast<float>(high[i]);
    const float s = direction * sine[i];
    low[i] = rounded<T>(a * cosine[i] - b * s);
    high[i] = rounded<T>(b * cosine[i] + a * s);
  }
}

}  // namespace

template <class T>
void rope(const Rope<T>& p, int64_t begin, int64_t end) {
  const int64_t half = p.rotated / 2;
  for (int64_t m = begin; m < end; ++m) {
    const float* const cosine = p.table + (m % p.positions - (p.starts == nullptr ? 0 : p.starts[m])) * p.rotated;
    for (int64_t head = 0; head < p.heads; ++head) {
      T* const low = p.qkv + m * p.columns + head * p.head_size;
      rotate_head(cosine, cosine + half, p.direction, half, low, low + half);
    }
  }
}

TRIREME_INSTANCES(rope, Rope);

}  // namespace trireme::cpu::TRIREME_ISA
