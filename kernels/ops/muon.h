#pragma once
// Muon: gradient descent with momentum, whose update of each matrix is replaced by the nearest orthogonal one.
// Sources: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; Liu et al. 2025, arXiv:2502.16982 (weight decay, scale of the update).
#include <array>
#include <cstdint>

#include "kernels/core/optimizer_traits.h"
#include "kernels/core/tensor.h"

namespace trireme {

/// The factor on the orthogonal matrix.
double muon_scale(MuonScale scale, const std::array<int64_t, 2>& shape);

/// m = momentum m + s g;   u = momentum m + s g (Nesterov), with s = scalars[kGradScale]. A rejected step does not write m.
/// scalars [kStepScalars] f64; g, m of equal shape and dtype; u of that shape, of their dtype or bf16.
void muon_momentum(Context& ctx, double momentum, const Tensor& scalars, const Tensor& g, const Tensor& m, const Tensor& u);

/// x := scale * U V^T, approximately, with x = U S V^T: five Newton-Schulz iterations of X = a X + b (X X^T) X + c (X X^T)^2 X from X = x / (|x| + 1e-7),
/// which bring the singular values to between 0.68 and 1.14. Products are in the dtype of x and accumulate in fp32 (fp64).
/// x [rows, columns]. FLOPs: newton_schulz_flops(). Memory: 2 k^2 + rows columns elements, with k = min(rows, columns); k^2 more in fp32 for a bf16
/// matrix with more rows than columns.
void newton_schulz(Context& ctx, const Tensor& x, double scale);
double newton_schulz_flops(const std::array<int64_t, 2>& shape);

/// The two operations of newton_schulz() that are not products.
/// x := x / (sqrt(squares) + 1e-7).   squares [1] f64.
void divide_by_norm(Context& ctx, const Tensor& squares, const Tensor& x);
/// out = a x + b y; out may be x or y. All of one shape and dtype.
void weighted_sum(Context& ctx, double a, const Tensor& x, double b, const Tensor& y, const Tensor& out);

}  // namespace trireme
