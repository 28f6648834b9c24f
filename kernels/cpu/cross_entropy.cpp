#include "kernels/cpu/cross_entropy.h"

#include <algorithm>

#include "kernels/cpu/math.h"
#include "kernels/cpu/parallel.h"

namespace trireme::cpu {

void cross_entropy_max(Context& ctx, const Tensor& logits, const VocabRange& range, const Tensor& row_max) {
  const int64_t columns = logits.dim(1);
  const int64_t valid = range.valid;
  const float* const in = logits.data<float>();
  float* const largest = row_max.data<float>();
  parallel_for(ctx, logits.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) largest[m] = max_of(in + m * columns, valid);
  });
}

void cross_entropy_sums(Context& ctx, const Tensor& logits, const Tensor& targets, const VocabRange& range, const Tensor& row_max,
                        const Tensor& sums) {
  const int64_t rows = logits.dim(0);
  const int64_t columns = logits.dim(1);
  const int64_t vocab_begin = range.begin;
  const int64_t valid = range.valid;
  const float* const in = logits.data<float>();
  const int32_t* const target_ids = targets.data<int32_t>();
  const float* const largest = row_max.data<float>();
  float* const exponentials = sums.data<float>();
  float* const target_logits = exponentials + rows;
  parallel_for(ctx, rows, grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const float* const row = in + m * columns;
      const float shift = largest[m];
      float sum = 0;
#pragma omp simd reduction(+ : sum)
      for (int64_t c = 0; c < valid; ++c) sum += simd_exp(row[c] - shift);
      exponentials[m] = sum;
      const int64_t target = target_ids[m] - vocab_begin;
      const bool here = target_ids[m] >= 0 && target >= 0 && target < valid;
      target_logits[m] = here ? row[target] - shift : 0.0f;
    }
  });
}

void cross_entropy_backward(Context& ctx, const Tensor& targets, const VocabRange& range, const Tensor& row_max, const Tensor& sums,
                            const Tensor& scale, const Tensor& logits) {
  const int64_t columns = logits.dim(1);
  const int64_t vocab_begin = range.begin;
  const int64_t valid = range.valid;
  const int32_t* const target_ids = targets.data<int32_t>();
  const float* const largest = row_max.data<float>();
  const float* const exponentials = sums.data<float>();
  const double weight = scale.data<double>()[0];
  float* const out = logits.data<float>();
  parallel_for(ctx, logits.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      float* const row = out + m * columns;
      if (target_ids[m] < 0) {
        std::fill_n(row, columns, 0.0f);
        continue;
      }
      const float shift = largest[m];
      const float factor = static_cast<float>(weight / exponentials[m]);
#pragma omp simd
      for (int64_t c = 0; c < valid; ++c) row[c] = simd_exp(row[c] - shift) * factor;
      std::fill(row + valid, row + columns, 0.0f);
      const int64_t target = target_ids[m] - vocab_begin;
      if (target >= 0 && target < valid) row[target] -= static_cast<float>(weight);
    }
  });
}

}  // namespace trireme::cpu
