#include "kernels/cpu/embedding.h"

#include <cstring>

#include "kernels/cpu/isa.h"

namespace trireme::cpu {

void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y) {
  const int64_t columns = y.dim(1);
  const int64_t row_bytes = columns * size_of(y.dtype());
  const int32_t* const ids = tokens.data<int32_t>();
  const auto* const weight = static_cast<const unsigned char*>(w.raw());
  auto* const out = static_cast<unsigned char*>(y.raw());
  parallel_for(ctx, y.dim(0), grain_of(columns), [=](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) {
      const int64_t row = ids[m] - vocab_begin;
      if (row >= 0 && row < vocab_rows) {
        std::memcpy(out + m * row_bytes, weight + row * row_bytes, static_cast<size_t>(row_bytes));
      } else {
        std::memset(out + m * row_bytes, 0, static_cast<size_t>(row_bytes));
      }
    }
  });
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  dispatch_type(dy.dtype(), [&]<class T>(T) {
    const EmbeddingBackward<T> arguments{.tokens = tokens.data<int32_t>(),
                                         .dy = dy.data<T>(),
                                         .rows = rows,
                                         .columns = columns,
                                         .vocab_begin = vocab_begin,
                                         .vocab_rows = vocab_rows,
                                         .dw = dw.data<float>()};
    run_kernel(ctx, typed_kernels<T>(ctx).embedding_backward, arguments, columns, column_grain(rows));
  });
}

}  // namespace trireme::cpu
