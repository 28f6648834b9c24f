#include "kernels/ops/norm.h"

#include "kernels/cpu/norm.h"
#include "kernels/cuda/norm.h"
#include "kernels/ops/dispatch.h"
#include "kernels/reference/elementwise.h"
#include "kernels/reference/norm.h"

namespace trireme {
namespace {

/// Only for the reference: the kernels of GPU and CPU add the residual themselves.
template <class T>
void add_residual(const Tensor& residual, const Tensor& dx) {
  if (residual.defined()) reference::add(dx.data<T>(), residual.data<T>(), dx.data<T>(), dx.numel());
}

}  // namespace

void rmsnorm_forward(Context& ctx, const Tensor& x, const Tensor& w, double epsilon, const Tensor& y, const Tensor& rstd, double offset) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "rmsnorm_forward",
                      {{"x", x, {rows, columns}, dtype}, {"w", w, {columns}, dtype}, {"y", y, {rows, columns}, dtype}, {"rstd", rstd, {rows}, wide}});
  operation.run(
      dtype, [&] { cuda::rmsnorm_forward(ctx, x, w, epsilon, y, rstd, offset); },
      FastCpu{[&] {
                cpu::norm_forward(ctx, x, {}, {w, {}, epsilon, offset}, {}, y, {}, rstd);
              },
              true},
      [&]<class T>(T) {
        reference::rmsnorm_forward(x.data<T>(), w.data<T>(), offset, epsilon, y.data<T>(), rstd.data<Accumulator<T>>(), rows, columns);
      });
}

void add_rmsnorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, double epsilon, const Tensor& sum, const Tensor& y,
                         const Tensor& rstd, double offset) {
  const int64_t rows = a.dim(0), columns = a.dim(1);
  const DType dtype = a.dtype();
  Operation operation(ctx, "add_rmsnorm_forward",
                      {{"a", a, {rows, columns}, dtype},
                       {"b", b, {rows, columns}, dtype},
                       {"w", w, {columns}, dtype},
                       {"sum", sum, {rows, columns}, dtype},
                       {"y", y, {rows, columns}, dtype},
                       {"rstd", rstd, {rows}, accumulator_of(dtype)}});
  operation.run(
      dtype, [&] { cuda::add_rmsnorm_forward(ctx, a, b, w, epsilon, sum, y, rstd, offset); },
      FastCpu{[&] {
                cpu::norm_forward(ctx, a, b, {w, {}, epsilon, offset}, sum, y, {}, rstd);
              },
              true},
      [&]<class T>(T) {
        reference::add(a.data<T>(), b.data<T>(), sum.data<T>(), sum.numel());
        reference::rmsnorm_forward(sum.data<T>(), w.data<T>(), offset, epsilon, y.data<T>(), rstd.data<Accumulator<T>>(), rows, columns);
      });
}

void rmsnorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual,
                            const Tensor& dx, double offset) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "rmsnorm_backward_input",
                      {{"dy", dy, {rows, columns}, dtype},
                       {"x", x, {rows, columns}, dtype},
                       {"w", w, {columns}, dtype},
                       {"rstd", rstd, {rows}, wide},
                       {"dx", dx, {rows, columns}, dtype}});
  operation.optional({"residual", residual, dx.shape(), dx.dtype()});
  operation.run(
      dtype, [&] { cuda::rmsnorm_backward_input(ctx, dy, x, w, rstd, residual, dx, offset); },
      FastCpu{[&] {
                cpu::norm_backward_input(ctx, dy, x, {w, {}, 0, offset}, {}, rstd, residual, dx);
              },
              true},
      [&]<class T>(T) {
        reference::rmsnorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), offset, rstd.data<Accumulator<T>>(), dx.data<T>(), rows, columns);
        add_residual<T>(residual, dx);
      });
}

void rmsnorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& rstd, const Tensor& dw) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(
      ctx, "rmsnorm_backward_weight",
      {{"dy", dy, {rows, columns}, dtype}, {"x", x, {rows, columns}, dtype}, {"rstd", rstd, {rows}, wide}, {"dw", dw, {columns}, wide}});
  operation.run(
      dtype, [&] { cuda::rmsnorm_backward_weight(ctx, dy, x, rstd, dw); },
      FastCpu{[&] { cpu::norm_backward_weight(ctx, dy, x, {}, rstd, dw, {}); }, true},
      [&]<class T>(T) {
        reference::rmsnorm_backward_weight(dy.data<T>(), x.data<T>(), rstd.data<Accumulator<T>>(), dw.data<Accumulator<T>>(), rows, columns);
      });
}

void rmsnorm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& rstd, const Tensor& residual, const Tensor& dx,
                      const Tensor& dw, double offset) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "rmsnorm_backward",
                      {{"dy", dy, {rows, columns}, dtype},
                       {"x", x, {rows, columns}, dtype},
                       {"w", w, {columns}, dtype},
                       {"rstd", rstd, {rows}, wide},
                       {"dx", dx, {rows, columns}, dtype},
                       {"dw", dw, {columns}, wide}});
  operation.optional({"residual", residual, dx.shape(), dx.dtype()});
  operation.run(
      dtype, [&] { cuda::rmsnorm_backward(ctx, dy, x, w, rstd, residual, dx, dw, offset); },
      FastCpu{[&] {
                cpu::norm_backward_input(ctx, dy, x, {w, {}, 0, offset}, {}, rstd, residual, dx);
                cpu::norm_backward_weight(ctx, dy, x, {}, rstd, dw, {});
              },
              true},
      [&]<class T>(T) {
        reference::rmsnorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), offset, rstd.data<Accumulator<T>>(), dx.data<T>(), rows, columns);
        add_residual<T>(residual, dx);
        reference::rmsnorm_backward_weight(dy.data<T>(), x.data<T>(), rstd.data<Accumulator<T>>(), dw.data<Accumulator<T>>(), rows, columns);
      });
}

void layernorm_forward(Context& ctx, const Tensor& x, const Tensor& w, const Tensor& b, double epsilon, const Tensor& y, const Tensor& mean,
                       const Tensor& rstd) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "layernorm_forward",
                      {{"x", x, {rows, columns}, dtype},
                       {"w", w, {columns}, dtype},
                       {"b", b, {columns}, dtype},
                       {"y", y, {rows, columns}, dtype},
                       {"mean", mean, {rows}, wide},
                       {"rstd", rstd, {rows}, wide}});
  operation.run(
      dtype, [&] { cuda::layernorm_forward(ctx, x, w, b, epsilon, y, mean, rstd); },
      FastCpu{[&] {
                cpu::norm_forward(ctx, x, {}, {w, b, epsilon, 0}, {}, y, mean, rstd);
              },
              true},
      [&]<class T>(T) {
        reference::layernorm_forward(x.data<T>(), w.data<T>(), b.data<T>(), epsilon, y.data<T>(), mean.data<Accumulator<T>>(),
                                     rstd.data<Accumulator<T>>(), rows, columns);
      });
}

void add_layernorm_forward(Context& ctx, const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias, double epsilon, const Tensor& sum,
                           const Tensor& y, const Tensor& mean, const Tensor& rstd) {
  const int64_t rows = a.dim(0), columns = a.dim(1);
  const DType dtype = a.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "add_layernorm_forward",
                      {{"a", a, {rows, columns}, dtype},
                       {"b", b, {rows, columns}, dtype},
                       {"w", w, {columns}, dtype},
                       {"bias", bias, {columns}, dtype},
                       {"sum", sum, {rows, columns}, dtype},
                       {"y", y, {rows, columns}, dtype},
                       {"mean", mean, {rows}, wide},
                       {"rstd", rstd, {rows}, wide}});
  operation.run(
      dtype, [&] { cuda::add_layernorm_forward(ctx, a, b, w, bias, epsilon, sum, y, mean, rstd); },
      FastCpu{[&] {
                cpu::norm_forward(ctx, a, b, {w, bias, epsilon, 0}, sum, y, mean, rstd);
              },
              true},
      [&]<class T>(T) {
        reference::add(a.data<T>(), b.data<T>(), sum.data<T>(), sum.numel());
        reference::layernorm_forward(sum.data<T>(), w.data<T>(), bias.data<T>(), epsilon, y.data<T>(), mean.data<Accumulator<T>>(),
                                     rstd.data<Accumulator<T>>(), rows, columns);
      });
}

void layernorm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                              const Tensor& residual, const Tensor& dx) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "layernorm_backward_input",
                      {{"dy", dy, {rows, columns}, dtype},
                       {"x", x, {rows, columns}, dtype},
                       {"w", w, {columns}, dtype},
                       {"mean", mean, {rows}, wide},
                       {"rstd", rstd, {rows}, wide},
                       {"dx", dx, {rows, columns}, dtype}});
  operation.optional({"residual", residual, dx.shape(), dx.dtype()});
  operation.run(
      dtype, [&] { cuda::layernorm_backward_input(ctx, dy, x, w, mean, rstd, residual, dx); },
      FastCpu{[&] {
                cpu::norm_backward_input(ctx, dy, x, {w, {}, 0, 0}, mean, rstd, residual, dx);
              },
              true},
      [&]<class T>(T) {
        reference::layernorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), mean.data<Accumulator<T>>(), rstd.data<Accumulator<T>>(),
                                            dx.data<T>(), rows, columns);
        add_residual<T>(residual, dx);
      });
}

void layernorm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                               const Tensor& db) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "layernorm_backward_weight",
                      {{"dy", dy, {rows, columns}, dtype},
                       {"x", x, {rows, columns}, dtype},
                       {"mean", mean, {rows}, wide},
                       {"rstd", rstd, {rows}, wide},
                       {"dw", dw, {columns}, wide},
                       {"db", db, {columns}, wide}});
  operation.run(
      dtype, [&] { cuda::layernorm_backward_weight(ctx, dy, x, mean, rstd, dw, db); },
      FastCpu{[&] { cpu::norm_backward_weight(ctx, dy, x, mean, rstd, dw, db); }, true},
      [&]<class T>(T) {
        reference::layernorm_backward_weight(dy.data<T>(), x.data<T>(), mean.data<Accumulator<T>>(), rstd.data<Accumulator<T>>(),
                                             dw.data<Accumulator<T>>(), db.data<Accumulator<T>>(), rows, columns);
      });
}

void layernorm_backward(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& w, const Tensor& mean, const Tensor& rstd,
                        const Tensor& residual, const Tensor& dx, const Tensor& dw, const Tensor& db) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  const DType dtype = x.dtype(), wide = accumulator_of(dtype);
  Operation operation(ctx, "layernorm_backward",
                      {{"dy", dy, {rows, columns}, dtype},
                       {"x", x, {rows, columns}, dtype},
                       {"w", w, {columns}, dtype},
                       {"mean", mean, {rows}, wide},
                       {"rstd", rstd, {rows}, wide},
                       {"dx", dx, {rows, columns}, dtype},
                       {"dw", dw, {columns}, wide},
                       {"db", db, {columns}, wide}});
  operation.optional({"residual", residual, dx.shape(), dx.dtype()});
  operation.run(
      dtype, [&] { cuda::layernorm_backward(ctx, dy, x, w, mean, rstd, residual, dx, dw, db); },
      FastCpu{[&] {
                cpu::norm_backward_input(ctx, dy, x, {w, {}, 0, 0}, mean, rstd, residual, dx);
                cpu::norm_backward_weight(ctx, dy, x, mean, rstd, dw, db);
              },
              true},
      [&]<class T>(T) {
        reference::layernorm_backward_input(dy.data<T>(), x.data<T>(), w.data<T>(), mean.data<Accumulator<T>>(), rstd.data<Accumulator<T>>(),
                                            dx.data<T>(), rows, columns);
        add_residual<T>(residual, dx);
        reference::layernorm_backward_weight(dy.data<T>(), x.data<T>(), mean.data<Accumulator<T>>(), rstd.data<Accumulator<T>>(),
                                             dw.data<Accumulator<T>>(), db.data<Accumulator<T>>(), rows, columns);
      });
}

}  // namespace trireme
