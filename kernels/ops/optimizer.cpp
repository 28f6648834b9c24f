#include "kernels/ops/optimizer.h"

#include <cmath>

#include "kernels/cpu/optimizer.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/optimizer.h"

namespace trireme {

void scale_loss(Context& ctx, const Tensor& scalars, const Tensor& factor) {
  Operation operation(ctx, "scale_loss", {{"scalars", scalars, {kStepScalars}, DType::kF64}, {"factor", factor, {1}, DType::kF64}});
  operation.run(
      DType::kF64, [&] { cuda::scale_loss(ctx, scalars, factor); },
      [&]<class T>(T) { factor.data<double>()[0] *= scalars.data<double>()[kLossScale]; });
}

void mark_outlier(Context& ctx, const Tensor& scalars, const Tensor& sums) {
  Operation operation(ctx, "mark_outlier", {{"scalars", scalars, {kStepScalars}, DType::kF64}, {"sums", sums, {kStepSums}, DType::kF64}});
  operation.run(
      DType::kF64, [&] { cuda::mark_outlier(ctx, scalars, sums); },
      [&]<class T>(T) { reference::mark_outlier(scalars.data<double>(), sums.data<double>()); });
}

void finalize_step_scalars(Context& ctx, const AdamW& hyper, const LossScaling& scaling, const Tensor& sums, double clip, const Tensor& norm,
                           const Tensor& scalars) {
  Operation operation(
      ctx, "finalize_step_scalars",
      {{"sums", sums, {kStepSums}, DType::kF64}, {"norm", norm, {1}, DType::kF64}, {"scalars", scalars, {kStepScalars}, DType::kF64}});
  operation.run(
      DType::kF64, [&] { cuda::finalize_step_scalars(ctx, hyper, scaling, sums, clip, norm, scalars); },
      [&]<class T>(T) { reference::finalize_step_scalars(hyper, scaling, sums.data<double>(), clip, norm.data<double>(), scalars.data<double>()); });
}

void adamw_step(Context& ctx, const AdamW& hyper, const Tensor& scalars, std::span<const AdamWSlice> slices) {
  if (slices.empty()) return;
  const DType dtype = slices.front().w.dtype();
  Operation operation(ctx, "adamw_step", {{"scalars", scalars, {kStepScalars}, DType::kF64}});
  for (const AdamWSlice& s : slices) {
    const Shape& shape = s.w.shape();
    operation.operand({"w", s.w, shape, dtype, Passes::kReadAndWritten});
    operation.operand({"g", s.g, shape, dtype});
    operation.operand({"m", s.m, shape, dtype, Passes::kReadAndWritten});
    operation.operand({"v", s.v, shape, dtype, Passes::kReadAndWritten});
  }
  operation.run(
      dtype, [&] { cuda::adamw_step(ctx, hyper, scalars, slices); }, FastCpu{[&] { cpu::adamw_step(ctx, hyper, scalars, slices); }},
      [&]<class T>(T) {
        for (const AdamWSlice& s : slices)
          reference::adamw_step(hyper, s.decay ? hyper.weight_decay : 0, scalars.data<double>(), s.w.data<T>(), s.g.data<T>(), s.m.data<T>(),
                                s.v.data<T>(), s.w.numel());
      });
}

void first_non_finite(Context& ctx, std::span<const Tensor> tensors, const Tensor& scalars, const Tensor& index) {
  Operation operation(ctx, "first_non_finite", {{"scalars", scalars, {kStepScalars}, DType::kF64}, {"index", index, {1}, DType::kF64}});
  const DType dtype = tensors.empty() ? DType::kF32 : tensors.front().dtype();
  for (const Tensor& x : tensors) operation.operand({"x", x, x.shape(), dtype});
  operation.run(
      dtype, [&] { cuda::first_non_finite(ctx, tensors, scalars, index); },
      [&]<class T>(T) {
        double& found = index.data<double>()[0];
        found = -1;
        if (scalars.data<double>()[kAccepted] != 0) return;
        for (size_t i = 0; i < tensors.size() && found < 0; ++i)
          if (!std::isfinite(reference::sum_of_squares(tensors[i].data<T>(), tensors[i].numel()))) found = static_cast<double>(i);
      });
}

void sum_of_squares(Context& ctx, std::span<const Tensor> tensors, const Tensor& sum, std::span<double> each) {
  if (tensors.empty()) return;
  TRIREME_CHECK(each.empty() || (each.size() == tensors.size() && ctx.device != Device::kCuda), each.size(), " of ", tensors.size());
  const DType dtype = tensors.front().dtype();
  Operation operation(ctx, "sum_of_squares", {{"sum", sum, {1}, DType::kF64}});
  for (const Tensor& x : tensors) operation.operand({"x", x, x.shape(), dtype});
  operation.run(
      dtype, [&] { cuda::sum_of_squares(ctx, tensors, sum); }, FastCpu{[&] { cpu::sum_of_squares(ctx, tensors, sum, each); }, true},
      [&]<class T>(T) {
        for (size_t i = 0; i < tensors.size(); ++i) {
          const double squares = reference::sum_of_squares(tensors[i].data<T>(), tensors[i].numel());
          sum.data<double>()[0] += squares;
          if (!each.empty()) each[i] = squares;
        }
      });
}

}  // namespace trireme
