#pragma once
#include "kernels/core/tensor.h"
#include "kernels/ops/documents.h"

namespace trireme {

/// y[m] = w[tokens[m] - vocab_begin] if that row is in [0, vocab_rows), else 0 (another tensor rank owns the token).
/// tokens [M] int32, w [>= vocab_rows, D], y [M,D].
void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y);
/// dw[tokens[m] - vocab_begin] += dy[m], in row order m (deterministic), dw in the accumulator dtype.
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw);

/// Learned positions: y[m] += w[p], p = (first_row + m) % sequence_length, less starts[m] with documents.   y [M,D], w [>= sequence_length, D]. The
/// documents are those of these rows; only their starts are read. Records count min(M, sequence_length) rows of w or dw: no document is longer.
void position_forward(Context& ctx, const Tensor& w, int64_t first_row, int64_t sequence_length, const Tensor& y, const Documents& documents = {});
/// dw[p] += dy[m], in row order m (deterministic).
void position_backward(Context& ctx, const Tensor& dy, int64_t first_row, int64_t sequence_length, const Tensor& dw, const Documents& documents = {});

}  // namespace trireme
