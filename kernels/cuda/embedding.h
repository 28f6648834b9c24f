#pragma once
// GPU implementation of kernels/ops/embedding.h for fp32, bf16 and fp16. Gradients use no atomics: each block owns a range of rows and columns of dw
// and processes all tokens in order.
// Positions with documents: threads own positions, as in the backward. y and dy are accessed once, and so are the rows of the table up to the length of
// the longest document. Each block of 4 positions or more loads all starts, 4 bytes a row, which stay in the L2 cache.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void embedding_forward(Context& ctx, const Tensor& tokens, const Tensor& w, int64_t vocab_begin, int64_t vocab_rows, const Tensor& y);
void embedding_backward(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& dw);
/// `starts`: of Documents, or null.
void position_forward(Context& ctx, const Tensor& w, int64_t first_row, int64_t sequence_length, const int32_t* starts, const Tensor& y);
void position_backward(Context& ctx, const Tensor& dy, int64_t first_row, int64_t sequence_length, const int32_t* starts, const Tensor& dw);

}  // namespace trireme::cuda
