#pragma once
// The two passes over all parameters of kernels/ops/optimizer.h.
#include "kernels/core/tensor.h"
#include "kernels/ops/optimizer.h"

namespace trireme::cpu {

/// In fp32. Threads take elements of all slices together.
void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices);
/// In double, in blocks of 4096 elements that are added in order.
void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum);

}  // namespace trireme::cpu
