#include "kernels/cpu/norm.h"

#include "kernels/cpu/isa.h"

namespace trireme::cpu {

void norm_forward(Context& ctx, const Tensor& x, const Tensor& addend, const Norm& norm, const Tensor& sum, const Tensor& y, const Tensor& mean,
                  const Tensor& rstd) {
  const int64_t columns = x.dim(1);
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const NormForward<T> arguments{.x = x.data<T>(),
                                   .addend = data_or_null<T>(addend),
                                   .w = norm.w.data<T>(),
                                   .b = data_or_null<T>(norm.b),
                                   .epsilon = static_cast<float>(norm.epsilon),
                                   .offset = static_cast<float>(norm.offset),
                                   .columns = columns,
                                   .sum = data_or_null<T>(sum),
                                   .y = y.data<T>(),
                                   .mean = data_or_null<float>(mean),
                                   .rstd = rstd.data<float>()};
    run_kernel(ctx, typed_kernels<T>(ctx).norm_forward, arguments, x.dim(0), grain_of(columns));
  });
}

void norm_backward_input(Context& ctx, const Tensor& dy, const Tensor& x, const Norm& norm, const Tensor& mean, const Tensor& rstd,
                         const Tensor& residual, const Tensor& dx) {
  const int64_t columns = x.dim(1);
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const NormBackwardInput<T> arguments{.dy = dy.data<T>(),
                                         .x = x.data<T>(),
                                         .w = norm.w.data<T>(),
                                         .mean = data_or_null<float>(mean),
                                         .rstd = rstd.data<float>(),
                                         .residual = data_or_null<T>(residual),
                                         .offset = static_cast<float>(norm.offset),
                                         .columns = columns,
                                         .dx = dx.data<T>()};
    run_kernel(ctx, typed_kernels<T>(ctx).norm_backward_input, arguments, x.dim(0), grain_of(columns));
  });
}

void norm_backward_weight(Context& ctx, const Tensor& dy, const Tensor& x, const Tensor& mean, const Tensor& rstd, const Tensor& dw,
                          const Tensor& db) {
  const int64_t rows = x.dim(0), columns = x.dim(1);
  dispatch_type(x.dtype(), [&]<class T>(T) {
    const NormBackwardWeight<T> arguments{.dy = dy.data<T>(),
                                          .x = x.data<T>(),
                                          .mean = data_or_null<float>(mean),
                                          .rstd = rstd.data<float>(),
                                          .rows = rows,
                                          .columns = columns,
                                          .dw = dw.data<float>(),
                                          .db = data_or_null<float>(db)};
    run_kernel(ctx, typed_kernels<T>(ctx).norm_backward_weight, arguments, columns, column_grain(rows));
  });
}

}  // namespace trireme::cpu
