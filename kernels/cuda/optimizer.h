#pragma once
// GPU implementation of kernels/ops/optimizer.h. Slices are batched: one launch processes up to 72 slices or 128 tensors. Sums are in double over
// chunks of fixed size, added in order.
#include <span>

#include "kernels/core/tensor.h"
#include "kernels/ops/optimizer.h"

namespace trireme::cuda {

void scale_loss(Context& ctx, const Tensor& scalars, const Tensor& factor);
void mark_outlier(Context& ctx, const Tensor& scalars, const Tensor& sums);
void finalize_step_scalars(Context& ctx, const AdamW& hyper, const LossScaling& scaling, const Tensor& sums, double clip, const Tensor& norm,
                           const Tensor& scalars);
void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices);
void first_non_finite(Context& ctx, std::span<const Tensor> tensors, const Tensor& scalars, const Tensor& index);
void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum);

}  // namespace trireme::cuda
