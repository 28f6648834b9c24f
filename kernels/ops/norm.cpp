#include "kernels/ops/norm.h"

#include "kernels/cpu/norm.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/norm.h"

namespace trireme {

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype();
  expect("rmsnorm_forward",
         {{"x", x, {rows, columns}, dtype}, {"w", w, {columns}, dtype}, {"y", y, {rows, columns}, dtype}, {"rstd", rstd, {rows}, dtype}});
  on_device(
      ctx, dtype, [&] { cpu::rmsnorm_forward(ctx, x, w, epsilon, y, rstd); },
      [&]<class T>(T) { reference::rmsnorm_forward(x.data<T>(), w.data<T>(), epsilon, y.data<T>(), rstd.data<T>(), rows, columns); });
}

void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& dx) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype();
  expect("rmsnorm_backward_input", {{"dy", dy, {rows, columns}, dtype},
                                    {"x", x, {rows, columns}, dtype},
                                    {"w", w, {columns}, dtype},
                                    {"rstd", rstd, {rows}, dtype},
                                    {"dx", dx, {rows, columns}, dtype}});
  on_device(
      ctx, dtype, [&] { cpu::rmsnorm_backward_input(ctx, dy, x, w, rstd, dx); },
      [&]<class T>(T) { reference::rmsnorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), rstd.data<T>(), dx.data<T>(), rows, columns); });
}

void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype();
  expect("rmsnorm_backward_weight",
         {{"dy", dy, {rows, columns}, dtype}, {"x", x, {rows, columns}, dtype}, {"rstd", rstd, {rows}, dtype}, {"dw", dw, {columns}, dtype}});
  on_device(
      ctx, dtype, [&] { cpu::rmsnorm_backward_weight(ctx, dy, x, rstd, dw); },
      [&]<class T>(T) { reference::rmsnorm_backward_weight(dy.data<T>(), x.data<T>(), rstd.data<T>(), dw.data<T>(), rows, columns); });
}

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype();
  expect("layernorm_forward", {{"x", x, {rows, columns}, dtype},
                               {"w", w, {columns}, dtype},
                               {"b", b, {columns}, dtype},
                               {"y", y, {rows, columns}, dtype},
                               {"mean", mean, {rows}, dtype},
                               {"rstd", rstd, {rows}, dtype}});
  on_device(
      ctx, dtype, [&] { cpu::layernorm_forward(ctx, x, w, b, epsilon, y, mean, rstd); },
      [&]<class T>(T) {
        reference::layernorm_forward(x.data<T>(), w.data<T>(), b.data<T>(), epsilon, y.data<T>(), mean.data<T>(), rstd.data<T>(), rows, columns);
      });
}

void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& dx) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype();
  expect("layernorm_backward_input", {{"dy", dy, {rows, columns}, dtype},
                                      {"x", x, {rows, columns}, dtype},
                                      {"w", w, {columns}, dtype},
                                      {"mean", mean, {rows}, dtype},
                                      {"rstd", rstd, {rows}, dtype},
                                      {"dx", dx, {rows, columns}, dtype}});
  on_device(
      ctx, dtype, [&] { cpu::layernorm_backward_input(ctx, dy, x, w, mean, rstd, dx); },
      [&]<class T>(T) {
        reference::layernorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), mean.data<T>(), rstd.data<T>(), dx.data<T>(), rows, columns);
      });
}

void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype();
  expect("layernorm_backward_weight", {{"dy", dy, {rows, columns}, dtype},
                                       {"x", x, {rows, columns}, dtype},
                                       {"mean", mean, {rows}, dtype},
                                       {"rstd", rstd, {rows}, dtype},
                                       {"dw", dw, {columns}, dtype},
                                       {"db", db, {columns}, dtype}});
  on_device(
      ctx, dtype, [&] { cpu::layernorm_backward_weight(ctx, dy, x, mean, rstd, dw, db); },
      [&]<class T>(T) {
        reference::layernorm_backward_weight(dy.data<T>(), x.data<T>(), mean.data<T>(), rstd.data<T>(), dw.data<T>(), db.data<T>(), rows, columns);
      });
}

}  // namespace trireme
