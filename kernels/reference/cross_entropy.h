#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "kernels/ops/cross_entropy.h"

namespace trireme::reference {

/// row_max[m] = sums[rows + m] = max over valid columns; sums[m] = sum_c exp(logit_c - max), 0 if the max is -infinity
template <class T>
void cross_entropy_sums(const T* logits, const VocabRange& range, Accumulator<T>* row_max, Accumulator<T>* sums, int64_t rows, int64_t columns) {
  constexpr auto kLowest = -std::numeric_limits<Accumulator<T>>::infinity();
  for (int64_t m = 0; m < rows; ++m) {
    const T* logit = logits + m * columns;
    row_max[m] = kLowest;
    for (int64_t c = 0; c < range.valid; ++c) row_max[m] = std::max(row_max[m], static_cast<Accumulator<T>>(logit[c]));
    const double highest = row_max[m];
    double sum = 0;
    for (int64_t c = 0; c < range.valid && row_max[m] != kLowest; ++c) sum += std::exp(logit[c] - highest);
    sums[m] = static_cast<Accumulator<T>>(sum);
    sums[rows + m] = row_max[m];
  }
}

/// sums = [sums * exp(own max - max) | logit_target - max if the target is in range, else 0], the own max taken from sums[rows + m]
template <class T>
void cross_entropy_rescale(const T* logits, const int32_t* targets, const VocabRange& range, const Accumulator<T>* row_max, Accumulator<T>* sums,
                           int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m) {
    const double highest = row_max[m];
    sums[m] = static_cast<Accumulator<T>>(sums[m] * std::exp(sums[rows + m] - highest));
    const int64_t target = targets[m] - range.begin;
    const bool local = targets[m] >= 0 && target >= 0 && target < range.valid;
    sums[rows + m] = static_cast<Accumulator<T>>(local ? logits[m * columns + target] - highest : 0.0);
  }
}

/// The sum over unmasked rows of log(sum exp(logit - max)) - (logit_target - max)
template <class T>
double cross_entropy_loss(const int32_t* targets, const T* sums, int64_t rows) {
  double loss = 0;
  for (int64_t m = 0; m < rows; ++m) {
    if (targets[m] >= 0) loss += std::log(static_cast<double>(sums[m])) - sums[rows + m];
  }
  return loss;
}

/// logits := (softmax - one_hot(target)) * scale
template <class T>
void cross_entropy_backward(const int32_t* targets, const VocabRange& range, const Accumulator<T>* row_max, const Accumulator<T>* sums, double scale,
                            T* logits, int64_t rows, int64_t columns) {
  for (int64_t m = 0; m < rows; ++m) {
    T* logit = logits + m * columns;
    const double highest = row_max[m], sum = sums[m];
    const bool masked = targets[m] < 0;
    for (int64_t c = 0; c < columns; ++c) {
      const double one_hot = targets[m] - range.begin == c ? 1 : 0;
      logit[c] = static_cast<T>(masked || c >= range.valid ? 0.0 : (std::exp(logit[c] - highest) / sum - one_hot) * scale);
    }
  }
}

}  // namespace trireme::reference
