#pragma once
// The token embedding of kernels/ops/embedding.h.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

/// Threads take rows.
void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y);
/// Threads take columns, each walks the tokens in order: repeated tokens are summed in row order whatever the number of threads.
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw);

}  // namespace trireme::cpu
