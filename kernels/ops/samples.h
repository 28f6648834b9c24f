#pragma once
// Operations on the gradients of single samples, for clipping each of them. A micro-batch has B samples of R rows each; row m of a tensor that begins at
// row `first_row` of the micro-batch belongs to sample (first_row + m) / R. On CPUs.
// Sources: Abadi et al. 2016, arXiv:1607.00133 (clipping); Li et al. 2022, arXiv:2110.05679 (norms without the gradients).
#include "kernels/core/tensor.h"

namespace trireme {

/// sum[0] (f64) += factor * sum of a * b.   a, b: f32 or f64, of one dtype and size. The sum is made in double.
void add_inner_product(Context& ctx, const Tensor& a, const Tensor& b, double factor, const Tensor& sum);

/// squares[s] (f64) += |dw|^2, where dw is what embedding_backward (kernels/ops/embedding.h) adds for the rows of sample s alone.
/// tokens [B*R] int32, dy [B*R,D], squares [B]. Time and memory O(B*R*D), whatever the vocabulary.
void embedding_sample_squares(Context& ctx, const Tensor& tokens, const Tensor& dy, int64_t vocab_begin, int64_t vocab_rows, const Tensor& squares);

/// factors[s] := min(1, limit / sqrt(squares[s])).   squares, factors [B] f64. The factor of squares that are not finite is 0. `powers_of_two`: factors are
/// rounded down to one, by which 16-bit numbers are multiplied without rounding. Rows that are rounded again could add up to a gradient that is longer
/// than the limit, if they nearly cancel out.
void clip_factors(Context& ctx, const Tensor& squares, double limit, bool powers_of_two, const Tensor& factors);

/// x[m] *= factors[sample of row m].   x [M,C], factors [B] f64. A factor of 0 makes a row zero, whatever it contains.
void scale_sample_rows(Context& ctx, const Tensor& x, int64_t rows_per_sample, int64_t first_row, const Tensor& factors);
/// x[m] := 0 where the factor of the sample of row m is 0; other rows stay.   x [M,C] or [M]. For the other operand of a product with such rows, which
/// may not be finite.
void clear_sample_rows(Context& ctx, const Tensor& x, int64_t rows_per_sample, int64_t first_row, const Tensor& factors);

}  // namespace trireme
