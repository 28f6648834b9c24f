#pragma once
// GPU implementation of kernels/ops/compress.h in fp32. Messages have the bits of kernels/reference/compress.h, except the order of the sums of kSign.
// A message begins at a multiple of 4 bytes.
#include "kernels/core/tensor.h"
#include "kernels/ops/compress.h"

namespace trireme::cuda {

void encode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& gradient, const Tensor& error,
            const Tensor& message, const Tensor& next_error);
void decode(Context& ctx, const EncodingOptions& options, const EncodingDraw& draw, const Tensor& message, const Tensor& out);

/// kTopK (compress_top.cu).
void encode_largest(Context& ctx, int64_t kept, const Tensor& gradient, const Tensor& error, const Tensor& message, const Tensor& next_error);

}  // namespace trireme::cuda
