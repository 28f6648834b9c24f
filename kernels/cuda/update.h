#pragma once
// GPU implementation of kernels/ops/update.h for the optimizers of kernels/ops/update_rules.h. Slices are batched: one launch updates up to 64.
#include <span>

#include "kernels/ops/update.h"

namespace trireme::cuda {

void update_step(Context& ctx, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices);
void average_step(Context& ctx, double decay, const Tensor& scalars, const Tensor& w, const Tensor& e);
void copy_accepted(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to);

}  // namespace trireme::cuda
