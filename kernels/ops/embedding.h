#pragma once
#include "kernels/core/tensor.h"

namespace trireme {

/// y[m] = w[tokens[m] - vocab_begin] if that row is in [0, vocab_rows), else 0 (another tensor rank owns the token).
/// tokens [M] int32, w [>= vocab_rows, D], y [M,D].
void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y);
/// dw[tokens[m] - vocab_begin] += dy[m], in row order m (deterministic), dw in the accumulator dtype.
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw);

/// Learned positions: y[m] += w[(first_row + m) % sequence_length].   y [M,D], w [>= sequence_length, D].
void position_forward(Context& ctx, const Tensor& w, int64_t first_row, int64_t sequence_length, const Tensor& y);
/// dw[(first_row + m) % sequence_length] += dy[m].
void position_backward(Context& ctx, const Tensor& dy, int64_t first_row, int64_t sequence_length, const Tensor& dw);

}  // namespace trireme
