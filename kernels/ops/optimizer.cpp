#include "kernels/ops/optimizer.h"

#include <cmath>

#include "kernels/cpu/optimizer.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/optimizer.h"

namespace trireme {

void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, const Tensor& w, const Tensor& g, const Tensor& m, const Tensor& v) {
  const Shape& shape = w.shape();
  const DType dtype = w.dtype();
  expect("adamw_step", {{"scalars", scalars, {kStepScalars}, DType::kF64},
                        {"w", w, shape, dtype},
                        {"g", g, shape, dtype},
                        {"m", m, shape, dtype},
                        {"v", v, shape, dtype}});
  on_device(
      ctx, dtype, [&] { cpu::adamw_step(ctx, hyper, scalars, w, g, m, v); },
      [&]<class T>(T) { reference::adamw_step(hyper, scalars.data<double>(), w.data<T>(), g.data<T>(), m.data<T>(), v.data<T>(), w.numel()); });
}

void sum_of_squares(Context& ctx, const Tensor& x, const Tensor& sum) {
  expect("sum_of_squares", {{"x", x, x.shape(), x.dtype()}, {"sum", sum, {1}, DType::kF64}});
  on_device(
      ctx, x.dtype(), [&] { cpu::sum_of_squares(ctx, x, sum); },
      [&]<class T>(T) { sum.data<double>()[0] += reference::sum_of_squares(x.data<T>(), x.numel()); });
}

void clip_factor(Context& ctx, const Tensor& sum_sq, double clip, const Tensor& norm, const Tensor& scalars) {
  expect("clip_factor", {{"sum_sq", sum_sq, {1}, DType::kF64}, {"norm", norm, {1}, DType::kF64}, {"scalars", scalars, {kStepScalars}, DType::kF64}});
  if (ctx.device == Device::kMeta) return;
  const double value = std::sqrt(sum_sq.data<double>()[0]);
  norm.data<double>()[0] = value;
  scalars.data<double>()[kGradScale] = clip > 0 && value > clip ? clip / value : 1;
  scalars.data<double>()[kFinite] = std::isfinite(value) ? 1 : 0;
}

}  // namespace trireme
