#pragma once
// GPU implementation of kernels/ops/elementwise.h. fill, copy and accumulate also take fp64 (scalars of a step). copy converts between any two float
// dtypes and copies equal dtypes of any kind as bytes.
#include "kernels/core/tensor.h"
#include "kernels/ops/elementwise.h"

namespace trireme::cuda {

void fill(Context& ctx, double value, const Tensor& out);
void copy(Context& ctx, const Tensor& from, const Tensor& to);
void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out);
void scale(Context& ctx, const Tensor& x, double factor, const Tensor& y);
void accumulate(Context& ctx, const Tensor& x, const Tensor& out);
void max_absolute(Context& ctx, const Tensor& x, const Tensor& largest);
/// Bit-identical to the masks of kernels/core/rng.h.
void dropout(Context& ctx, const Tensor& x, const DropoutMask& mask, const Tensor& y);
/// Uses the random bits of kernels/core/rng.h. Box-Muller uses the GPU's double-precision functions, whose last bit may differ from the host's.
void fill_normal(Context& ctx, uint64_t key, double standard_deviation, int64_t global_columns, int64_t row_begin, int64_t column_begin,
                 const Tensor& out);

}  // namespace trireme::cuda
