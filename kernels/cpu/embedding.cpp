#include "kernels/cpu/embedding.h"

#include <algorithm>

#include "kernels/cpu/parallel.h"

namespace trireme::cpu {

void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y) {
  const int64_t columns = y.dim(1);
  const int32_t* const ids = tokens.data<int32_t>();
  const float* const weight = w.data<float>();
  float* const out = y.data<float>();
  parallel_for(ctx, y.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const int64_t row = ids[m] - vocab_begin;
      if (row >= 0 && row < vocab_rows) {
        std::copy_n(weight + row * columns, columns, out + m * columns);
      } else {
        std::fill_n(out + m * columns, columns, 0.0f);
      }
    }
  });
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw) {
  const int64_t columns = dy.dim(1);
  const int64_t rows = dy.dim(0);
  const int32_t* const ids = tokens.data<int32_t>();
  const float* const gradient = dy.data<float>();
  float* const out = dw.data<float>();
  const int64_t grain = (grain_of(rows) + 63) / 64 * 64;  // whole cache lines, and long enough runs for the prefetcher
  parallel_for(ctx, columns, grain, [=](int64_t begin, int64_t end) {
    for (int64_t m = 0; m < rows; ++m) {
      const int64_t row = ids[m] - vocab_begin;
      if (row < 0 || row >= vocab_rows) continue;
      const float* const from = gradient + m * columns;
      float* const to = out + row * columns;
#pragma omp simd
      for (int64_t d = begin; d < end; ++d) to[d] += from[d];
    }
  });
}

}  // namespace trireme::cpu
