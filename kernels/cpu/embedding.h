#pragma once
// CPU kernels for the token embedding of kernels/ops/embedding.h.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

/// Threads share the rows.
void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y);
/// Threads share the columns, and each processes the tokens in order: repeated tokens are summed in row order for any number of threads.
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw);

}  // namespace trireme::cpu
