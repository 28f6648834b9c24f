#pragma once
// kernels/ops/matmul.h by cuBLASLt: fp32 accumulation, bias and (in bf16) GELU as epilogues, dw accumulated by beta = 1 into fp32. fp32 products are
// exact to fp32 unless GpuOptions::tf32. The heuristic's choice is cached by shape and alignment; where it has none (16-bit rows of an odd number of
// elements), an own kernel computes (matmul_plain.h).
#include <string>

#include "kernels/core/gpu.h"
#include "kernels/core/tensor.h"

namespace trireme::cuda {

void linear_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& y);
void linear_gelu_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& bias, const Tensor& hidden, const Tensor& y);
void linear_backward_input(Context& ctx, const Tensor& dy, const Tensor& w, const Tensor& dx);
void linear_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& dw);

/// Own kernels.
void bias_forward(Context& ctx, const Tensor& bias, const Tensor& y);
void bias_backward(Context& ctx, const Tensor& dy, const Tensor& dbias);

/// Loads cuBLASLt, so that a run begins with it or not at all. "cuBLASLt 13.1.0, CUDA runtime 13.0, driver 13.0", for the record of a run.
/// Errors: ConfigError where the library is missing.
std::string library_versions(Gpu& gpu);

/// Products of this GPU by who computed them, since its start: the second is for sizes that should be padded in a run that matters.
struct ProductCounts {
  int64_t library = 0;
  int64_t plain = 0;
  int64_t plans = 0;  ///< questions put to the heuristic
};
ProductCounts product_counts(Gpu& gpu);

}  // namespace trireme::cuda
