#include "kernels/cpu/isa/loops.h"
#include "kernels/cpu/isa/math.h"

namespace trireme::cpu::TRIREME_ISA {
namespace {

/// Sums blocks of 1024 in fp32 and the blocks in double: a single fp32 sum over 10^5 tokens would add more error than the exponentials have.
template <class T>
double sum_of_exponentials(const T* x, int64_t count, float shift) {
  constexpr int64_t kBlock = 1024;
  double total = 0;
  for (int64_t first = 0; first < count; first += kBlock) {
    const int64_t end = count - first < kBlock ? count : first + kBlock;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = first; c < end; ++c) sum += simd_exp(static_cast<float>(x[c]) - shift);
    total += sum;
  }
  return total;
}

template <class T>
void scaled_exponentials(T* x, int64_t count, float shift, float factor) {
#pragma omp simd
  for (int64_t c = 0; c < count; ++c) x[c] = rounded<T>(simd_exp(static_cast<float>(x[c]) - shift) * factor);
}

template <class T>
void zeros(T* x, int64_t count) {
  for (int64_t c = 0; c < count; ++c) x[c] = static_cast<T>(0.0F);
}

}  // namespace

/// The second loop finds the row in a cache.
template <class T>
void cross_entropy_sums(const CrossEntropySums<T>& p, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    const T* const row = p.logits + m * p.columns;
    const float highest = max_of(row, p.valid);
    const bool none = highest == -__builtin_inff();
    p.row_max[m] = highest;
    p.sums[m] = none ? 0.0F : static_cast<float>(sum_of_exponentials(row, p.valid, highest));
    p.sums[p.rows + m] = highest;
  }
}

template <class T>
void cross_entropy_backward(const CrossEntropyBackward<T>& p, int64_t begin, int64_t end) {
  for (int64_t m = begin; m < end; ++m) {
    T* const row = p.logits + m * p.columns;
    if (p.targets[m] < 0) {
      zeros(row, p.columns);
      continue;
    }
    const float shift = p.row_max[m];
    const float factor = static_cast<float>(p.scale / static_cast<double>(p.sums[m]));
    const int64_t target = p.targets[m] - p.first;
    const bool here = target >= 0 && target < p.valid;
    const float logit = here ? static_cast<float>(row[target]) : 0.0F;
    scaled_exponentials(row, p.valid, shift, factor);
    zeros(row + p.valid, p.columns - p.valid);
    // Computed from the logit, because the loop has rounded its result to T.
    if (here) row[target] = rounded<T>(simd_exp(logit - shift) * factor - static_cast<float>(p.scale));
  }
}

TRIREME_INSTANCES(cross_entropy_sums, CrossEntropySums);
TRIREME_INSTANCES(cross_entropy_backward, CrossEntropyBackward);

}  // namespace trireme::cpu::TRIREME_ISA
