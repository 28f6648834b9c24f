#pragma once
// CPU kernels of kernels/ops/norm.h. Threads share the rows or, for the weight gradients, the columns. addend and residual may be undefined;
// undefined bias and mean select RMSNorm.
#include "kernels/core/tensor.h"

namespace trireme::cpu {

struct Norm {
  const Tensor &w, &b;
  double epsilon, offset;  ///< of w
};
/// sum = x + addend, and y = norm(sum); without an addend y = norm(x).
void norm_forward(Context& ctx, const Tensor& x, const Tensor& addend, const Norm& norm, const Tensor& sum, const Tensor& y, const Tensor& mean,
                  const Tensor& rstd);
/// Reads w and offset of `norm`.
void norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Norm& norm, const Tensor& mean, const Tensor& rstd,
                         const Tensor& residual, const Tensor& dx);
void norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                          const Tensor& db);

}  // namespace trireme::cpu
