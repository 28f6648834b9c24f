#pragma once
// CPU kernels of kernels/ops/compress.h in fp32, for the encodings in blocks.
#include "kernels/core/tensor.h"
#include "kernels/ops/compress.h"

namespace trireme::cpu {

void encode_blocks(Context& ctx, const EncodingOptions& options, const Tensor& gradient, const Tensor& error, const Tensor& message,
                   const Tensor& next_error);
void decode_blocks(Context& ctx, const EncodingOptions& options, const Tensor& message, const Tensor& out);

}  // namespace trireme::cpu
