#pragma once
// kernels/ops/update.h on the GPU, of the optimizers that are rules (kernels/ops/update_rules.h): all slices in one launch.
#include <span>

#include "kernels/ops/update.h"

namespace trireme::cuda {

void update_step(Context& ctx, Optimizer optimizer, const AdamW& hyper, const Tensor& scalars, std::span<const UpdateSlice> slices);
void average_step(Context& ctx, double decay, const Tensor& scalars, const Tensor& w, const Tensor& e);

}  // namespace trireme::cuda
