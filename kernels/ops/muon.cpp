#include "kernels/ops/muon.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/parallel.h"
#include "kernels/cuda/muon.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/ops/matmul.h"
#include "kernels/ops/optimizer.h"

namespace trireme {
namespace {

constexpr int kIterations = 5;
constexpr double kA = 3.4445, kB = -4.7750, kC = 2.0315;  // Jordan et al.: the steepest slope at 0 with which small values end near 1
constexpr double kNormEpsilon = 1e-7;

template <class C, class T, class U>
void momentum_on_host(const Context& ctx, double momentum, const double* scalars, const Tensor& g, const Tensor& m, const Tensor& u) {
  const C factor = static_cast<C>(scalars[kGradScale]), decay = static_cast<C>(momentum);
  const bool accepted = scalars[kAccepted] != 0;
  const auto range = [=, gradient = g.data<T>(), state = m.data<T>(), update = u.data<U>()](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const C own = static_cast<C>(gradient[i]) * factor, moved = decay * static_cast<C>(state[i]) + own;
      update[i] = static_cast<U>(decay * moved + own);
      if (accepted) state[i] = static_cast<T>(moved);
    }
  };
  cpu::for_elements(ctx, g.numel(), range);
}

template <class C, class T>
void momentum_on_host(const Context& ctx, double momentum, const double* scalars, const Tensor& g, const Tensor& m, const Tensor& u) {
  u.dtype() == m.dtype() ? momentum_on_host<C, T, T>(ctx, momentum, scalars, g, m, u)
                         : momentum_on_host<C, T, bfloat16>(ctx, momentum, scalars, g, m, u);
}

template <class C, class T>
void divide_on_host(const Context& ctx, const double* squares, const Tensor& x) {
  const C divisor = static_cast<C>(std::sqrt(*squares) + kNormEpsilon);
  cpu::for_elements(ctx, x.numel(), [divisor, values = x.data<T>()](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = static_cast<T>(static_cast<C>(values[i]) / divisor);
  });
}

template <class C, class T>
void sum_on_host(const Context& ctx, double a, const Tensor& x, double b, const Tensor& y, const Tensor& out) {
  const auto range = [p = static_cast<C>(a), q = static_cast<C>(b), left = x.data<T>(), right = y.data<T>(), to = out.data<T>()](int64_t begin,
                                                                                                                                 int64_t end) {
    for (int64_t i = begin; i < end; ++i) to[i] = static_cast<T>(p * static_cast<C>(left[i]) + q * static_cast<C>(right[i]));
  };
  cpu::for_elements(ctx, out.numel(), range);
}

/// x x^T for a matrix with more columns than rows, else x^T x.
void gram(Context& ctx, const Tensor& x, const Tensor& out) {
  if (x.shape()[0] <= x.shape()[1]) return linear_forward(ctx, x, x, {}, out);
  const DType wide = accumulator_of(x.dtype());
  if (wide == x.dtype()) return linear_backward_weight(ctx, x, x, out, false);
  const Tensor sum = Tensor::empty(ctx, out.shape(), wide, MemoryCategory::kWorkspace);
  linear_backward_weight(ctx, x, x, sum, false);
  copy(ctx, sum, out);
}

}  // namespace

double muon_scale(MuonScale scale, const std::array<int64_t, 2>& shape) {
  const auto rows = static_cast<double>(shape[0]), columns = static_cast<double>(shape[1]);
  return scale == MuonScale::kRms ? 0.2 * std::sqrt(std::max(rows, columns)) : std::sqrt(std::max(1.0, rows / columns));
}

void muon_momentum(Context& ctx, double momentum, const Tensor& scalars, const Tensor& g, const Tensor& m, const Tensor& u) {
  const DType dtype = m.dtype();
  const DType sent = u.dtype() == DType::kBF16 ? DType::kBF16 : dtype;
  Operation operation(ctx, "muon_momentum",
                      {{"scalars", scalars, {kStepScalars}, DType::kF64},
                       {"g", g, m.shape(), dtype},
                       {"m", m, m.shape(), dtype, Passes::kReadAndWritten},
                       {"u", u, m.shape(), sent}});
  operation.moves(2 * int64_t{sizeof(double)} + g.bytes() + 2 * m.bytes() + u.bytes());  // of the scalars it reads two
  const double* const on_host = ctx.device == Device::kCpu || ctx.device == Device::kReference ? scalars.data<double>() : nullptr;
  operation.run(
      dtype, [&] { cuda::muon_momentum(ctx, momentum, scalars, g, m, u); },
      FastCpu{[&] { momentum_on_host<float, float>(ctx, momentum, on_host, g, m, u); }},
      [&]<class T>(T) { momentum_on_host<double, T>(ctx, momentum, on_host, g, m, u); });
}

void divide_by_norm(Context& ctx, const Tensor& squares, const Tensor& x) {
  Operation operation(ctx, "divide_by_norm", {{"squares", squares, {1}, DType::kF64}, {"x", x, x.shape(), x.dtype(), Passes::kReadAndWritten}});
  operation.run(
      x.dtype(), [&] { cuda::divide_by_norm(ctx, squares, kNormEpsilon, x); },
      FastCpu{[&] { divide_on_host<float, float>(ctx, squares.data<double>(), x); }},
      [&]<class T>(T) { divide_on_host<double, T>(ctx, squares.data<double>(), x); });
}

void weighted_sum(Context& ctx, double a, const Tensor& x, double b, const Tensor& y, const Tensor& out) {
  Operation operation(ctx, "weighted_sum",
                      {{"x", x, out.shape(), out.dtype()}, {"y", y, out.shape(), out.dtype()}, {"out", out, out.shape(), out.dtype()}});
  operation.run(
      out.dtype(), [&] { cuda::weighted_sum(ctx, a, x, b, y, out); }, FastCpu{[&] { sum_on_host<float, float>(ctx, a, x, b, y, out); }},
      [&]<class T>(T) { sum_on_host<double, T>(ctx, a, x, b, y, out); });
}

void newton_schulz(Context& ctx, const Tensor& x, double scale) {
  const int64_t rows = x.shape()[0], columns = x.shape()[1], least = std::min(rows, columns);
  const auto workspace = [&](Shape shape) { return Tensor::empty(ctx, shape, x.dtype(), MemoryCategory::kWorkspace); };
  const Tensor squares = Tensor::zeros(ctx, {1}, DType::kF64, MemoryCategory::kWorkspace);
  sum_of_squares(ctx, {&x, 1}, squares);
  divide_by_norm(ctx, squares, x);
  const Tensor product = workspace({least, least}), polynomial = workspace({least, least}), moved = workspace({rows, columns});
  for (int i = 0; i < kIterations; ++i) {
    gram(ctx, x, product);                                       // A = X X^T
    linear_forward(ctx, product, product, {}, polynomial);       // A A, because A is symmetric
    weighted_sum(ctx, kB, product, kC, polynomial, polynomial);  // B = b A + c A A
    if (rows <= columns)
      linear_backward_input(ctx, polynomial, x, moved);  // B X
    else
      linear_backward_input(ctx, x, polynomial, moved);  // X B
    const double length = i + 1 < kIterations ? 1 : scale;
    weighted_sum(ctx, length * kA, x, length, moved, x);
  }
}

double newton_schulz_flops(const std::array<int64_t, 2>& shape) {
  const auto least = static_cast<double>(std::min(shape[0], shape[1])), most = static_cast<double>(std::max(shape[0], shape[1]));
  return kIterations * (4 * least * least * most + 2 * least * least * least);
}

}  // namespace trireme
