#pragma once
// Robust means of vectors of which some may be wrong. `copies` [n,m] has a vector in each row; `rows` are the indices of those that take part, ascending.
// Sums are made in double. All tensors are f32 or f64, of one dtype, unless stated otherwise. On CPUs.
// Sources: Yin et al. 2018, arXiv:1803.01498 (median, trimmed mean); El Mhamdi et al. 2018, arXiv:1802.07927 (the mean near the median, of Bulyan).
#include <span>

#include "kernels/core/tensor.h"

namespace trireme {

/// out[k] := the mean of column k in `rows` without its `trimmed` smallest and `trimmed` largest values.   2 * trimmed < rows.
void trimmed_mean(Context& ctx, const Tensor& copies, std::span<const int> rows, int64_t trimmed, const Tensor& out);
/// out[k] := the median of column k in `rows`; of an even number of values the mean of the middle two.
void median(Context& ctx, const Tensor& copies, std::span<const int> rows, const Tensor& out);
/// out[k] := the mean of the `nearest` values of column k in `rows` that are nearest to their median. Of two equally near ones the smaller one comes
/// first.   1 <= nearest <= rows.
void mean_near_median(Context& ctx, const Tensor& copies, std::span<const int> rows, int64_t nearest, const Tensor& out);
/// out := center + sum of weights[i] * (copies[rows[i]] - center). out [m] may be center [m].
void weighted_mean(Context& ctx, const Tensor& copies, std::span<const int> rows, std::span<const double> weights, const Tensor& center,
                   const Tensor& out);

/// sums[r] += sum of the squares of columns [begin, begin + count) of row r, for all n rows.   sums [n] f64.
void add_row_squares(Context& ctx, const Tensor& copies, int64_t begin, int64_t count, const Tensor& sums);
/// products[a,b] += inner product of copies[rows[a]] - center and copies[rows[b]] - center, over columns [begin, begin + count).   center [m].
/// products f64: [rows, rows], or [rows] for the products with a = b only.
void add_centered_products(Context& ctx, const Tensor& copies, std::span<const int> rows, const Tensor& center, int64_t begin, int64_t count,
                           const Tensor& products);

/// to += share * (from - to).   Vectors of one size.
void blend(Context& ctx, double share, const Tensor& from, const Tensor& to);

}  // namespace trireme
