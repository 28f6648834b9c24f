#include "kernels/ops/norm.h"

#include "kernels/cpu/norm.h"
#include "kernels/cuda/norm.h"
#include "kernels/ops/dispatch.h"
#include "kernels/ops/elementwise.h"
#include "kernels/reference/norm.h"

namespace trireme {
namespace {

void expect_residual(const char* operation, const Tensor& residual, const Tensor& dx) {
  if (residual.defined()) expect(operation, {{"residual", residual, dx.shape(), dx.dtype()}});
}

/// On the GPU the kernel itself adds it, while the row is in registers.
void add_residual(Context& ctx, const Tensor& residual, const Tensor& dx) {
  if (residual.defined() && ctx.device != Device::kCuda) add(ctx, dx, residual, dx);
}

}  // namespace

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  expect("rmsnorm_forward",
         {{"x", x, {rows, columns}, dtype}, {"w", w, {columns}, dtype}, {"y", y, {rows, columns}, dtype}, {"rstd", rstd, {rows}, wide}});
  on_device(
      ctx, dtype, [&] { cuda::rmsnorm_forward(ctx, x, w, epsilon, y, rstd); }, FastCpu{[&] { cpu::rmsnorm_forward(ctx, x, w, epsilon, y, rstd); }},
      [&]<class T>(T) { reference::rmsnorm_forward(x.data<T>(), w.data<T>(), epsilon, y.data<T>(), rstd.data<Accumulator<T>>(), rows, columns); });
}

void add_rmsnorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, double epsilon, const Tensor& sum, const Tensor& y,
                         const Tensor& rstd) {
  if (ctx.device != Device::kCuda) {
    add(ctx, a, b, sum);
    return rmsnorm_forward(ctx, sum, w, epsilon, y, rstd);
  }
  const int64_t rows = a.dim(0), columns = a.dim(1);
  const DType dtype = a.dtype();
  expect("add_rmsnorm_forward", {{"a", a, {rows, columns}, dtype},
                                 {"b", b, {rows, columns}, dtype},
                                 {"w", w, {columns}, dtype},
                                 {"sum", sum, {rows, columns}, dtype},
                                 {"y", y, {rows, columns}, dtype},
                                 {"rstd", rstd, {rows}, accumulator_of(dtype)}});
  if constexpr (kCudaBuilt) cuda::add_rmsnorm_forward(ctx, a, b, w, epsilon, sum, y, rstd);
}

void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual,
                            const Tensor& dx) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  expect("rmsnorm_backward_input", {{"dy", dy, {rows, columns}, dtype},
                                    {"x", x, {rows, columns}, dtype},
                                    {"w", w, {columns}, dtype},
                                    {"rstd", rstd, {rows}, wide},
                                    {"dx", dx, {rows, columns}, dtype}});
  expect_residual("rmsnorm_backward_input", residual, dx);
  on_device(
      ctx, dtype, [&] { cuda::rmsnorm_backward_input(ctx, dy, x, w, rstd, residual, dx); },
      FastCpu{[&] { cpu::rmsnorm_backward_input(ctx, dy, x, w, rstd, dx); }},
      [&]<class T>(T) {
        reference::rmsnorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), rstd.data<Accumulator<T>>(), dx.data<T>(), rows, columns);
      });
  add_residual(ctx, residual, dx);
}

void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  expect("rmsnorm_backward_weight",
         {{"dy", dy, {rows, columns}, dtype}, {"x", x, {rows, columns}, dtype}, {"rstd", rstd, {rows}, wide}, {"dw", dw, {columns}, wide}});
  on_device(
      ctx, dtype, [&] { cuda::rmsnorm_backward_weight(ctx, dy, x, rstd, dw); }, FastCpu{[&] { cpu::rmsnorm_backward_weight(ctx, dy, x, rstd, dw); }},
      [&]<class T>(T) {
        reference::rmsnorm_backward_weight(dy.data<T>(), x.data<T>(), rstd.data<Accumulator<T>>(), dw.data<Accumulator<T>>(), rows, columns);
      });
}

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  expect("layernorm_forward", {{"x", x, {rows, columns}, dtype},
                               {"w", w, {columns}, dtype},
                               {"b", b, {columns}, dtype},
                               {"y", y, {rows, columns}, dtype},
                               {"mean", mean, {rows}, wide},
                               {"rstd", rstd, {rows}, wide}});
  on_device(
      ctx, dtype, [&] { cuda::layernorm_forward(ctx, x, w, b, epsilon, y, mean, rstd); },
      FastCpu{[&] { cpu::layernorm_forward(ctx, x, w, b, epsilon, y, mean, rstd); }},
      [&]<class T>(T) {
        reference::layernorm_forward(x.data<T>(), w.data<T>(), b.data<T>(), epsilon, y.data<T>(), mean.data<Accumulator<T>>(),
                                     rstd.data<Accumulator<T>>(), rows, columns);
      });
}

void add_layernorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, double epsilon, const Tensor& sum,
                           const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  if (ctx.device != Device::kCuda) {
    add(ctx, a, b, sum);
    return layernorm_forward(ctx, sum, w, bias, epsilon, y, mean, rstd);
  }
  const int64_t rows = a.dim(0), columns = a.dim(1);
  const DType dtype = a.dtype(), wide = accumulator_of(dtype);
  expect("add_layernorm_forward", {{"a", a, {rows, columns}, dtype},
                                   {"b", b, {rows, columns}, dtype},
                                   {"w", w, {columns}, dtype},
                                   {"bias", bias, {columns}, dtype},
                                   {"sum", sum, {rows, columns}, dtype},
                                   {"y", y, {rows, columns}, dtype},
                                   {"mean", mean, {rows}, wide},
                                   {"rstd", rstd, {rows}, wide}});
  if constexpr (kCudaBuilt) cuda::add_layernorm_forward(ctx, a, b, w, bias, epsilon, sum, y, mean, rstd);
}

void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& residual, const Tensor& dx) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  expect("layernorm_backward_input", {{"dy", dy, {rows, columns}, dtype},
                                      {"x", x, {rows, columns}, dtype},
                                      {"w", w, {columns}, dtype},
                                      {"mean", mean, {rows}, wide},
                                      {"rstd", rstd, {rows}, wide},
                                      {"dx", dx, {rows, columns}, dtype}});
  expect_residual("layernorm_backward_input", residual, dx);
  on_device(
      ctx, dtype, [&] { cuda::layernorm_backward_input(ctx, dy, x, w, mean, rstd, residual, dx); },
      FastCpu{[&] { cpu::layernorm_backward_input(ctx, dy, x, w, mean, rstd, dx); }},
      [&]<class T>(T) {
        reference::layernorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), mean.data<Accumulator<T>>(), rstd.data<Accumulator<T>>(),
                                            dx.data<T>(), rows, columns);
      });
  add_residual(ctx, residual, dx);
}

void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  expect("layernorm_backward_weight", {{"dy", dy, {rows, columns}, dtype},
                                       {"x", x, {rows, columns}, dtype},
                                       {"mean", mean, {rows}, wide},
                                       {"rstd", rstd, {rows}, wide},
                                       {"dw", dw, {columns}, wide},
                                       {"db", db, {columns}, wide}});
  on_device(
      ctx, dtype, [&] { cuda::layernorm_backward_weight(ctx, dy, x, mean, rstd, dw, db); },
      FastCpu{[&] { cpu::layernorm_backward_weight(ctx, dy, x, mean, rstd, dw, db); }},
      [&]<class T>(T) {
        reference::layernorm_backward_weight(dy.data<T>(), x.data<T>(), mean.data<Accumulator<T>>(), rstd.data<Accumulator<T>>(),
                                             dw.data<Accumulator<T>>(), db.data<Accumulator<T>>(), rows, columns);
      });
}

}  // namespace trireme
