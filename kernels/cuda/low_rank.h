#pragma once
// GPU implementation of kernels/ops/low_rank.h in fp32.
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void orthonormalise(Context& ctx, const Tensor& p);
void add_product(Context& ctx, double scale, const Tensor& p, const Tensor& q, int64_t begin, const Tensor& out);
void copy_nonzero_rows(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to);

}  // namespace trireme::cuda
