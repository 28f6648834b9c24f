#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/math.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

template <class T>
double squares(const T* x, int64_t count) {
  double sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(static_cast<float>(x[i])) * static_cast<double>(static_cast<float>(x[i]));
  return sum;
}

void adamw_slice(const AdamWUpdate& p, float decay, int64_t count, float* w, const float* g, float* m, float* v) {
  const float grad_scale = p.grad_scale, beta1 = p.beta1, beta2 = p.beta2, one_minus_beta1 = p.one_minus_beta1, one_minus_beta2 = p.one_minus_beta2;
  const float step_size = p.step_size, root_correction = p.root_correction, epsilon = p.epsilon;
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) {
    const float grad = g[i] * grad_scale;
    const float mean = beta1 * m[i] + one_minus_beta1 * grad;
    const float square = beta2 * v[i] + one_minus_beta2 * grad * grad;
    m[i] = mean;
    v[i] = square;
    w[i] = w[i] * decay - step_size * mean / (root(square) * root_correction + epsilon);
  }
}

}  // namespace

template <class T>
void sum_of_squares(const SumOfSquares<T>& p, int64_t begin, int64_t end) {
  for (int64_t b = begin; b < end; ++b) {
    const int64_t first = b * kSquaresBlock;
    p.partial[b] = squares(p.x + first, p.count - first < kSquaresBlock ? p.count - first : kSquaresBlock);
  }
}

void adamw(const AdamWUpdate& p, int64_t begin, int64_t end) {
  for (int64_t s = 0; s < p.count; ++s) {
    const AdamWUpdate::Slice& slice = p.slices[s];
    const int64_t first = begin > slice.begin ? begin : slice.begin, last = end < slice.end ? end : slice.end;
    if (first >= last) continue;
    const int64_t offset = first - slice.begin;
    adamw_slice(p, slice.decay, last - first, slice.w + offset, slice.g + offset, slice.m + offset, slice.v + offset);
  }
}

TRIREME_INSTANCES(sum_of_squares, SumOfSquares);

}  // namespace trireme::cpu::TRIREME_ISA
