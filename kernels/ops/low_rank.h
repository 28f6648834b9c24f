#pragma once
// What power iteration needs besides the products of kernels/ops/matmul.h. For a matrix M [m,n] and a basis Q [r,n], whose rows are the vectors:
//   P = M Q^T (linear_forward);   orthonormalise(P);   Q' = P^T M (linear_backward_weight);   M is approximately P Q', exactly if its rank is at most r.
// A second iteration from Q' is closer to the best approximation of rank r.
// Source: Vogels et al. 2019, arXiv:1905.13727 (PowerSGD). All tensors are f32 or f64, of one dtype.
#include "kernels/core/tensor.h"

namespace trireme {

/// Makes the columns of p [m,r] orthonormal, from the first to the last. A column that depends on those before it, apart from rounding, becomes zero. A
/// value that is not finite makes its column NaN.
void orthonormalise(Context& ctx, const Tensor& p);
/// out[i] += scale * (p q)[begin + i], counting the elements of the product row by row.   p [m,r], q [r,n], out [at most m*n - begin].
void add_product(Context& ctx, double scale, const Tensor& p, const Tensor& q, int64_t begin, const Tensor& out);
/// Rows of `to` := rows of `from`, except rows of zeros, which would end a power iteration for good. Writes nothing if scalars[kAccepted]
/// (kernels/ops/optimizer.h) says that the step is rejected.   scalars [kStepScalars] f64; from, to [r,n].
void copy_nonzero_rows(Context& ctx, const Tensor& scalars, const Tensor& from, const Tensor& to);

}  // namespace trireme
