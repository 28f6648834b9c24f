#include "kernels/ops/embedding.h"

#include <algorithm>

#include "kernels/cpu/embedding.h"
#include "kernels/cuda/embedding.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/embedding.h"

namespace trireme {

void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  const DType dtype = w.dtype();
  Operation operation(ctx, "embedding_forward",
                      {{"tokens", tokens, {rows}, DType::kI32},
                       {"w", w, {w.dim(0), columns}, dtype, Passes::kNotCounted},
                       {"y", y, {rows, columns}, dtype, Passes::kReadAndWritten}});
  TRIREME_CHECK(vocab_rows <= w.dim(0), "embedding_forward: ", vocab_rows, " tokens exceed w ", w.shape().str());
  operation.run(
      dtype, [&] { cuda::embedding_forward(ctx, tokens, w, vocab_begin, vocab_rows, y); },
      FastCpu{[&] { cpu::embedding_forward(ctx, tokens, w, vocab_begin, vocab_rows, y); }, true},
      [&]<class T>(T) { reference::embedding_forward(tokens.data<int32_t>(), w.data<T>(), vocab_begin, vocab_rows, y.data<T>(), rows, columns); });
}

void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  const DType dtype = dy.dtype();
  Operation operation(ctx, "embedding_backward",
                      {{"tokens", tokens, {rows}, DType::kI32},
                       {"dy", dy, {rows, columns}, dtype},
                       {"dw", dw, {dw.dim(0), columns}, accumulator_of(dtype), Passes::kNotCounted}});
  TRIREME_CHECK(vocab_rows <= dw.dim(0), "embedding_backward: ", vocab_rows, " tokens exceed dw ", dw.shape().str());
  operation.moves(tokens.bytes() + dy.bytes() + 2 * rows * columns * size_of(dw.dtype()));
  operation.run(
      dtype, [&] { cuda::embedding_backward(ctx, tokens, dy, vocab_begin, vocab_rows, dw); },
      FastCpu{[&] { cpu::embedding_backward(ctx, tokens, dy, vocab_begin, vocab_rows, dw); }, true},
      [&]<class T>(T) {
        reference::embedding_backward(tokens.data<int32_t>(), dy.data<T>(), vocab_begin, vocab_rows, dw.data<Accumulator<T>>(), rows, columns);
      });
}

void position_forward(Context& ctx, const Tensor& w, int64_t first_row, int64_t sequence_length, const Tensor& y, const Documents& documents) {
  const int64_t rows = y.dim(0), columns = y.dim(1);
  const DType dtype = y.dtype();
  Operation operation(ctx, "position_forward",
                      {{"w", w, {w.dim(0), columns}, dtype, Passes::kNotCounted}, {"y", y, {rows, columns}, dtype, Passes::kReadAndWritten}});
  TRIREME_CHECK(sequence_length > 0 && sequence_length <= w.dim(0), "position_forward: invalid sequence length ", sequence_length, " for w ",
                w.shape().str());
  operation.optional({"starts", documents.starts, {rows}, DType::kI32});
  const int32_t* const starts = documents.starts_or_null();
  const int64_t bounds = documents.defined() ? documents.starts.bytes() : 0;
  operation.moves(2 * y.bytes() + std::min(rows, sequence_length) * columns * size_of(dtype) + bounds);
  operation.run(
      dtype, [&] { cuda::position_forward(ctx, w, first_row, sequence_length, starts, y); },
      [&]<class T>(T) { reference::position_forward(w.data<T>(), first_row, sequence_length, starts, y.data<T>(), rows, columns); });
}

void position_backward(Context& ctx, const Tensor& dy, int64_t first_row, int64_t sequence_length, const Tensor& dw, const Documents& documents) {
  const int64_t rows = dy.dim(0), columns = dy.dim(1);
  const DType dtype = dy.dtype();
  Operation operation(ctx, "position_backward",
                      {{"dy", dy, {rows, columns}, dtype}, {"dw", dw, {dw.dim(0), columns}, accumulator_of(dtype), Passes::kNotCounted}});
  TRIREME_CHECK(sequence_length > 0 && sequence_length <= dw.dim(0), "position_backward: invalid sequence length ", sequence_length, " for dw ",
                dw.shape().str());
  operation.optional({"starts", documents.starts, {rows}, DType::kI32});
  const int32_t* const starts = documents.starts_or_null();
  const int64_t bounds = documents.defined() ? documents.starts.bytes() : 0;
  operation.moves(dy.bytes() + 2 * std::min(rows, sequence_length) * columns * size_of(dw.dtype()) + bounds);
  operation.run(
      dtype, [&] { cuda::position_backward(ctx, dy, first_row, sequence_length, starts, dw); },
      [&]<class T>(T) { reference::position_backward(dy.data<T>(), first_row, sequence_length, starts, dw.data<Accumulator<T>>(), rows, columns); });
}

}  // namespace trireme
