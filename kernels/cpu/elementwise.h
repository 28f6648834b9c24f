#pragma once
// CPU kernels of kernels/ops/elementwise.h in fp32, bf16 and fp16.
#include "kernels/core/tensor.h"
#include "kernels/ops/elementwise.h"

namespace trireme::cpu {

void fill(Context& ctx, double value, const Tensor& out);
/// Any combination of fp32, bf16 and fp16.
void copy(Context& ctx, const Tensor& from, const Tensor& to);
void add(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& out);
void scale(Context& ctx, const Tensor& x, double factor, const Tensor& y);
/// out has the dtype of x, or fp32.
void accumulate(Context& ctx, const Tensor& x, const Tensor& out);
void dropout(Context& ctx, const Tensor& x, const DropoutMask& mask, const Tensor& y);

}  // namespace trireme::cpu
