#pragma once
// CPU kernels of kernels/ops/optimizer.h: its two passes over all parameters.
#include "kernels/core/tensor.h"
#include "kernels/ops/optimizer.h"

namespace trireme::cpu {

/// Computes in fp32. Threads share the elements of all slices.
void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices);
/// Sums in double, over blocks of 4096 elements that are added in order.
void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum, std::span<double> each);

}  // namespace trireme::cpu
